"""A key that everything echoes is in no file of the run directory and in nothing that a command prints."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from derl_gym.cli import main
from derl_gym.trials.ledger import Ledger

pytest.importorskip("openai")

KEY = 'sk-fake/"quoted"\\secret+Zx81qQ77wV'
"""Longer in JSON and in an address."""
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Quotes the key that it was sent: /v1 in its reply, /refuse in its error."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            said = f"you sent {self.headers['Authorization']}"
            message = {"role": "assistant", "content": f"{said}\ng1\ng1+g2"}
            answer: dict = {"id": "1", "object": "chat.completion", "created": 0, "model": "stub"}
            answer |= {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
            refused = self.path.startswith("/refuse")
            content = json.dumps({"error": {"message": said}} if refused else answer).encode()
            self.send_response(401 if refused else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT), "OPENAI_API_KEY": KEY}
    return subprocess.run(
        [sys.executable, "-m", "derl_gym.cli", *arguments], env=environment, capture_output=True, text=True, timeout=300
    )


def assert_hidden(folder: Path, *ended: subprocess.CompletedProcess[str]) -> None:
    forms = [KEY, json.dumps(KEY)[1:-1], repr(KEY)[1:-1], "Zx81qQ77wV"]
    for text in (text for process in ended for text in (process.stdout, process.stderr)):
        assert not [form for form in forms if form in text], text
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [form for form in forms if form.encode() in content], path


@pytest.mark.slow
def test_a_search_and_its_report_never_tell_the_key(tmp_path: Path, endpoint: str) -> None:
    run = tmp_path / "run"
    search = ["search", "leaky:DERL-Leaky-v0", "--agent", "prompted", "--on-infrastructure-failure", "zero"]
    found = command(*search, "--agent-options", f"base_url={endpoint}/v1", "--out", str(run))
    assert found.returncode == 0, found.stderr
    report = command("report", str(run))
    assert report.returncode == 0 and (run / "report.html").exists()
    assert_hidden(run, found, report)
    with Ledger(run, readonly=True) as ledger:
        assert [row["status"] for row in ledger.trials()] == ["failed"]
        identity = ledger.trials()[0]["identity"]
    log = (run / "trials" / identity / "log.txt").read_text()
    assert log.count("printed ***") == log.count("written ***") == 2, "both attempts were redacted"
    (replies,) = run.glob("checkpoints/*/replies.jsonl")
    assert "you sent Bearer ***" in json.loads(replies.read_text())["reply"]


@pytest.mark.slow
def test_an_endpoint_that_refuses(tmp_path: Path, endpoint: str) -> None:
    run = tmp_path / "run"
    search = ["search", "leaky:DERL-Leaky-v0", "--agent", "prompted", "--out", str(run)]
    search += ["--agent-options", f"base_url={endpoint}/refuse"]
    short, long = command(*search), command(*search, "--debug")
    assert short.returncode == long.returncode == 1
    assert "you sent Bearer ***" in short.stderr and short.stderr.count("\n") <= 2
    assert "Traceback" in long.stderr and "you sent Bearer ***" in long.stderr
    assert_hidden(run, short, long)


@pytest.mark.parametrize("option", [f"api_key={KEY}", f"base_url=http://localhost/{KEY}", "password=short"])
def test_settings_that_hold_a_key_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    arguments = ["search", "leaky:DERL-Leaky-v0", "--agent", "prompted", "--agent-options", option]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 2
    name = option.partition("=")[0]
    assert f"derl-gym: {name} in --agent-options holds a secret" in (said := capsys.readouterr().err)
    assert KEY not in said and "short" not in said and not (tmp_path / "run").exists()
