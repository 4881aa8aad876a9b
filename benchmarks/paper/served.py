"""A language model behind `transformers serve` on this machine: the smoke scale's stand-in for a prompted GPT-4o.

It shows that the prompted proposer's commands run. A model of this size knows nothing of reward programs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

NEEDED = ("openai", "fastapi", "uvicorn", "requests", "python_multipart")
PLAIN_CHAT = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
START_SECONDS = 300.0


def why_not() -> str:
    """What is missing for it here; empty when it can be started."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    missing += [] if _command() else ["the command transformers"]
    return f"the server of the stand-in needs {', '.join(missing)}" if missing else ""


def _command() -> str | None:
    return shutil.which("transformers", path=os.path.dirname(sys.executable)) or shutil.which("transformers")


def servable(policy: str, folder: Path) -> str:
    """The model as the server takes it: a folder gets a chat template in a copy, a hub name stays."""
    if not Path(policy).is_dir():
        return policy
    copy = folder / Path(policy).name
    copy.mkdir(parents=True, exist_ok=True)
    for file in Path(policy).iterdir():
        if file.is_file() and not (copy / file.name).exists():
            shutil.copyfile(file, copy / file.name)
    if not (copy / "chat_template.jinja").exists():
        (copy / "chat_template.jinja").write_text(PLAIN_CHAT)
    return str(copy)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def served(model: str, port: int, log: Path) -> Iterator[None]:
    """Run the server while the block runs.

    Args:
        model: From :func:`servable`.
        port: Where it listens.
        log: File of its output.

    Raises:
        RuntimeError: when it ends, or doesn't answer within five minutes.
    """
    command = _command()
    assert command is not None
    arguments = ["serve", model, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = os.environ | ({"HF_HUB_OFFLINE": "1"} if Path(model).is_dir() else {})
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        server = subprocess.Popen([command, *arguments], stdout=file, stderr=file, env=environment)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"transformers serve did not start; see {log}: {log.read_text()[-500:]}")
            time.sleep(0.2)
        yield
    finally:
        server.terminate()
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False
