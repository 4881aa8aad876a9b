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


class StandIn:
    """The server.

    Args:
        policy: Model, hub name or folder; a folder's is served from a copy, with a chat template if it has none.
        folder: For the copy, the log and the port: a search that was broken off goes on with the same address.
    """

    def __init__(self, policy: str, folder: Path) -> None:
        self.policy, self.folder = policy, folder.absolute()
        self.model = str(self.folder / Path(policy).name) if Path(policy).is_dir() else policy
        self._port_file = self.folder / "port"
        self.port = int(self._port_file.read_text()) if self._port_file.exists() else free_port()

    @property
    def options(self) -> tuple[str, ...]:
        """Of the agent ``prompted``, as KEY=VALUE."""
        return f"model={self.model}", f"base_url=http://127.0.0.1:{self.port}/v1", "max_tokens=40"

    def why_not(self) -> str:
        """What is missing for it here; empty when it can be started."""
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        missing += [] if _command() else ["the command transformers"]
        return f"the prompted proposer's stand-in needs {', '.join(missing)}" if missing else ""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Serve while the block runs.

        Raises:
            RuntimeError: when the server ends, or doesn't answer within five minutes.
        """
        self._prepare()
        command, log = _command(), self.folder / "log.txt"
        assert command is not None
        arguments = ["serve", self.model, "--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu"]
        environment = os.environ | ({"HF_HUB_OFFLINE": "1"} if Path(self.model).is_dir() else {})
        with log.open("w") as file:
            server = subprocess.Popen([command, *arguments], stdout=file, stderr=file, env=environment)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not self._answers():
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

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._port_file.write_text(str(self.port))
        if self.model == self.policy:
            return
        copy = Path(self.model)
        copy.mkdir(exist_ok=True)
        for file in Path(self.policy).iterdir():
            if file.is_file():
                shutil.copyfile(file, copy / file.name)
        if not (copy / "chat_template.jinja").exists():
            (copy / "chat_template.jinja").write_text(PLAIN_CHAT)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                return True
        except OSError:
            return False


def _command() -> str | None:
    return shutil.which("transformers", path=os.path.dirname(sys.executable)) or shutil.which("transformers")


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
