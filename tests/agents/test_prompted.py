"""The prompted agent: its prompts, its reading of replies, its failures, and a real server."""

import contextlib
import gzip
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import urllib.request

import numpy as np
import pytest

pytest.importorskip("openai")

from derl_agents import search  # noqa: E402
from derl_agents.prompted import PromptedLLM, program_of, read_programs  # noqa: E402

KEY = "sk-a-secret-that-must-not-leak"


@pytest.fixture
def agent(make_envs, stub_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return PromptedLLM(make_envs(num_envs=3), base_url=stub_server.url, model="stub", retries=0)


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("g1+0.5*g2", "g1+0.5*g2"),
        ("1. g1 + 0.5 * g2", "g1+0.5*g2"),
        ("2) g1", "g1"),
        ("(3) g1-g2", "g1-g2"),
        ("4: g1", "g1"),
        ("1.g1+g2", "g1+g2"),
        ("- g1 + g2", "g1+g2"),
        ("* 0.5*g1", "0.5*g1"),
        ("> g1", "g1"),
        ("-g1+g2", "-g1+g2"),
        ("2. -g1+g2", "-g1+g2"),
        ("(2) * g1", "(2)*g1"),
        ("(g1+g2)*2", "(g1+g2)*2"),
        ("1.5*g1+2", "1.5*g1+2"),
        ("`g1*g2`", "g1*g2"),
        ("3. `R = g1 + g2`", "g1+g2"),
        ("R = g1 ** 2", "g1**2"),
        ("R(g) = g1 - g2", "g1-g2"),
        ("R_1: g1", "g1"),
        ("**g1+g2**", "g1+g2"),
        ("1. **g1 + g2**", "g1+g2"),
        ("1. **Outcome first**: `g1 + 0.2*g3`", "g1+0.2*g3"),
        ("Program 3: g1/(g2+1)", "g1/(g2+1)"),
        ("0.5*g1+g2  # mostly outcome", "0.5*g1+g2"),
        ("g1+g2 (emphasizes outcome)", "g1+g2"),
        ("g1+g2 - favours outcome", "g1+g2"),
        ("$g_1 + g_{2}$", "g1+g2"),
        (r"g1 \* g2", "g1*g2"),
        ("g1 \u00d7 g2 \u2212 g3", "g1*g2-g3"),
        ('"g1+g2",', "g1+g2"),
        ("g1 if g2 else 0", "g1ifg2else0"),  # not repaired into another program
        ("```python", ""),
        ("Here are the programs:", ""),
        ("We combine g1 and g2 here.", ""),
        ("I think g1+g2 is best", ""),
        ("", ""),
    ],
)
def test_reading_a_line(line, program):
    assert program_of(line) == program


def test_reading_a_reply():
    reply = "<think>\ng1*g1\n</think>\nSure! Here they are:\n\n```\n1. g1\n2. g1 + g2\n```\nGood luck with g1!"
    assert read_programs(reply, 3) == ["g1", "g1+g2", ""]
    assert read_programs(reply, 1) == ["g1"]
    assert read_programs("", 2) == ["", ""]
    assert len(read_programs("g1 " + "x" * 1_000_000, 1)[0]) < 1_000  # and at once
    assert read_programs("<think> g1 and so on, cut off", 1) == [""]


def test_first_prompt_then_the_scores(agent, stub_server):
    stub_server.reply = lambda body: "g1\ng1+g2\nsqrt(g1)"
    actions = agent.ask({}, {})
    (body,) = stub_server.requests
    (message,) = body["messages"]
    assert body["model"] == "stub" and message["role"] == "user"
    assert agent.instruction in message["content"] and "3 different reward programs" in message["content"]
    assert [agent.programs.decode(row) for row in actions] == ["g1", "g1+g2", ""]

    agent.tell(actions, [0.25, 0.5, 0.0], {})
    agent.tell(agent.ask({}, {}), [0.1, 0.2, 0.0], {})
    text = stub_server.requests[1]["messages"][0]["content"]
    assert "0.2500  g1\n0.5000  g1+g2\n0.0000  sqrt(g1)" in text  # it sees its mistake as it wrote it
    assert "3 improved reward programs" in text
    agent.ask({}, {})
    text = stub_server.requests[2]["messages"][0]["content"]
    assert "0.1000  g1\n" in text and "0.2500  g1" not in text  # the previous step alone


def test_history_all(make_envs, stub_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    agent = PromptedLLM(make_envs(num_envs=1), base_url=stub_server.url, history="all", max_tokens=77, temperature=0.3)
    stub_server.reply = lambda body: "g1"
    for score in (0.1, 0.2):
        agent.tell(agent.ask({}, {}), [score], {})
    agent.ask({}, {})
    assert "0.1000  g1\n0.2000  g1" in stub_server.requests[-1]["messages"][0]["content"]
    assert stub_server.requests[-1]["max_tokens"] == 77 and stub_server.requests[-1]["temperature"] == 0.3


def test_missing_and_unreadable_lines_are_invalid_proposals(make_envs, stub_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    envs = make_envs(num_envs=4)
    agent = PromptedLLM(envs, base_url=stub_server.url)
    stub_server.reply = lambda body: f"g1+g2\n{'g1+' * 40}g1\ng1+)"
    observation, info = envs.reset()
    _, scores, _, _, info = envs.step(agent.ask(observation, info))
    assert list(info["status"]) == ["scored", "invalid", "invalid", "invalid"]
    assert list(info["program"]) == ["g1+g2", "", "g1+)", ""]  # what the alphabet can write is handed on as it is
    assert (scores[1:] == 0).all()


def test_raw_replies_are_kept_and_bounded(agent, stub_server, tmp_path):
    stub_server.reply = lambda body: "g1 " + "x" * 100_000
    agent.ask({}, {})
    agent.save(tmp_path)
    (entry,) = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_text().splitlines()]
    assert entry["step"] == 0 and entry["reply"].startswith("g1 xxx") and len(entry["reply"]) == 20_000


@pytest.mark.parametrize(("status", "packed"), [(200, False), (503, False), (200, True)])
def test_an_endless_answer_is_not_read_to_its_end(make_envs, monkeypatch, status, packed):
    """50 MB without a length, or packed into 50 kB; neither may fill the memory."""
    sent, body = [], gzip.compress(bytes(50_000_000)) if packed else b""

    class Endless(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            with contextlib.suppress(OSError):
                if packed:
                    self.wfile.write(body)
                for _ in range(0 if packed else 500):
                    sent.append(self.wfile.write(b"g1 " * 33_333))

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    agent = PromptedLLM(make_envs(), base_url=f"http://127.0.0.1:{server.server_port}/v1", retries=0)
    tracemalloc.start()
    try:
        with pytest.raises(ConnectionError, match="packs its answers" if packed else "longer than 4,000,000 bytes"):
            agent.ask({}, {})
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()
        server.shutdown()
        server.server_close()
    assert sum(sent) < 25_000_000, "the rest was never sent"


def test_a_key_in_the_address_is_refused(make_envs, monkeypatch):
    monkeypatch.setenv("LOGIN", "short")  # no name of a secret, but the agent was told that it is one
    with pytest.raises(ValueError, match=r"put the key into \$LOGIN") as caught:
        PromptedLLM(make_envs(), base_url="http://host/v1?key=short", api_key_env="LOGIN")
    assert "short" not in str(caught.value)


def test_the_key_is_sent_and_never_written(agent, stub_server, tmp_path):
    agent.ask({}, {})
    assert stub_server.headers[0]["Authorization"] == f"Bearer {KEY}"
    agent.save(tmp_path)
    assert all(KEY not in file.read_bytes().decode("latin1") for file in tmp_path.rglob("*") if file.is_file())
    assert KEY not in repr(agent.options)


def test_the_key_is_redacted_from_errors(agent, stub_server):
    stub_server.reply = lambda body: 401  # this server quotes the key it was sent
    with pytest.raises(ConnectionError, match=r"no reply from http.*'stub'.*refused Bearer \*\*\*") as error:
        agent.ask({}, {})
    assert error.value.__cause__ is None and error.value.__context__ is None
    assert KEY not in str(error.value)


def test_another_variable_may_hold_the_key(make_envs, stub_server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("MY_KEY", "mine")
    PromptedLLM(make_envs(), base_url=stub_server.url, api_key_env="MY_KEY").ask({}, {})
    assert stub_server.headers[0]["Authorization"] == "Bearer mine"


def test_without_a_key(make_envs, stub_server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match="set the environment variable OPENAI_API_KEY"):
        PromptedLLM(make_envs())
    PromptedLLM(make_envs(), base_url=stub_server.url).ask({}, {})  # a local server needs none


def test_an_echoed_key_is_not_kept(agent, stub_server, tmp_path):
    stub_server.reply = lambda body: f"your key is {KEY}\ng1"
    agent.ask({}, {})
    agent.save(tmp_path)
    assert not any(KEY.encode() in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("base_url", "said"),
    [
        ("nonsense", "must be http"),
        ("http://", "must be http"),
        ("ftp://host/v1", "must be http"),
        (f"http://user:{KEY}@host/v1", "no credentials"),
    ],
)
def test_a_wrong_address_is_refused_at_once(make_envs, monkeypatch, base_url, said):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(ValueError, match=said) as caught:
        PromptedLLM(make_envs(), base_url=base_url)
    assert KEY not in str(caught.value)


def test_a_key_that_cannot_be_sent(make_envs, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "one\ntwo")
    with pytest.raises(ValueError, match="OPENAI_API_KEY holds characters") as caught:
        PromptedLLM(make_envs())
    assert "two" not in str(caught.value)


def test_server_errors_are_retried(make_envs, stub_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    agent = PromptedLLM(make_envs(num_envs=1), base_url=stub_server.url, retries=2)
    stub_server.reply = lambda body: 503 if len(stub_server.requests) < 3 else "g1"
    assert agent.programs.decode(agent.ask({}, {})[0]) == "g1"
    assert len(stub_server.requests) == 3


def test_no_server_is_one_clear_error(make_envs, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agent = PromptedLLM(make_envs(), base_url=f"http://127.0.0.1:{port}/v1", retries=1)
    with pytest.raises(ConnectionError, match=f"no reply from http://127.0.0.1:{port}.*after 2 attempts") as error:
        agent.ask({}, {})
    assert "refused" in str(error.value)
    assert agent.pending is None and agent.steps == 0  # the same ask can be made again


@pytest.mark.slow
def test_a_real_server(make_envs, stories260k, tmp_path, monkeypatch):
    """transformers' own OpenAI-compatible server with a real model, which knows nothing of reward programs."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    pytest.importorskip("requests")
    command = shutil.which("transformers", path=os.path.dirname(sys.executable))
    if command is None:
        pytest.skip("needs the command transformers")
    model = tmp_path / "stories260k"
    shutil.copytree(stories260k, model, copy_function=shutil.copyfile)
    model.chmod(0o700)
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with (tmp_path / "log.txt").open("w") as log:
        server = subprocess.Popen([command, *arguments], stdout=log, stderr=log, env=environment)
    try:
        deadline = time.monotonic() + 240
        while True:
            assert server.poll() is None, (tmp_path / "log.txt").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log.txt").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.5)
        envs = make_envs(num_envs=4, outer_steps=2)
        options = {"base_url": f"http://127.0.0.1:{port}/v1", "model": str(model), "max_tokens": 40, "timeout": 120.0}
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        agent = PromptedLLM(envs, **options)
        result = search(envs, agent, seed=0)
    finally:
        server.terminate()
        server.wait(timeout=30)
    assert len(agent.replies) == 2 and all(entry["reply"] for entry in agent.replies)
    assert np.shape(result.scores) == (2, 4)
