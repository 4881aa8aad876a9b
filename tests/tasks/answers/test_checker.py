r"""The process behind math-verify: one per process, killed and replaced, safe in threads and after a fork."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from derl_gym.tasks.answers import checker, equal, unfinished
from derl_gym.tasks.answers.checker import GivenUp, verify
from derl_gym.tasks.answers.worker import _out_of_time, judge

SLOW = (r"\int_0^1 e^{\sin(x)}\ln(x+2)dx", r"\int_0^1 e^{\cos(x)}\ln(x+3)dx")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    checker.stop()
    yield
    checker.stop()


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children() if child.cmdline()[-1:] == [str(checker._WORKER)]]


def worker_pid() -> int:
    verify("x", "y")
    (pid,) = children()
    return pid


def gone(pid: int, seconds: float = 30) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.02)
        return False
    return True


def test_one_process_is_started_lazily_and_kept():
    assert children() == []
    assert equal("1,234", "1234")
    assert children() == []
    pid = worker_pid()
    verdict, seconds = verify("x+1", "1+x")
    assert verdict and 0 <= seconds < checker.CPU_SECONDS
    assert children() == [pid]
    assert os.getpgid(pid) == os.getpgid(0)
    checker.stop()
    assert gone(pid)


def test_the_verdict_is_about_all_of_the_text():
    assert verify("x", "x")[0]
    assert not verify(r"1+\frac{1}{ e }", r"1-\frac{1}{ e }")[0]
    assert not verify("", "")[0]
    assert not verify("\ud800", "x")[0]


def test_a_slow_check_is_given_up_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checker, "CPU_SECONDS", 0.5)  # a fast machine decides this one in less than the usual limit
    pid = worker_pid()
    before = unfinished()
    with caplog.at_level(logging.WARNING, "derl_gym"):
        assert not equal(*SLOW)
        assert not equal(*SLOW)
    assert unfinished() == before + 1
    (record,) = [r for r in caplog.records if r.name == "derl_gym"]
    assert record.levelno == logging.WARNING and f"needs more than {checker.CPU_SECONDS:g} s" in record.getMessage()
    assert repr(SLOW[0]) in record.getMessage() and repr(SLOW[1]) in record.getMessage()
    assert children() == [pid]  # interrupted, not killed
    assert verify("2x", "x+x")[0]


def test_a_call_into_c_is_ended_by_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Such a sum runs no signal handler; multiplications of huge integers do.
    (tmp_path / "math_verify.py").write_text(
        "LatexExtractionConfig = dict\nparse = lambda *a, **k: [1]\nverify = lambda *a, **k: sum(range(10**12)) > 0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before, start = unfinished(), time.monotonic()
    with pytest.raises(GivenUp, match="needs more than 0.3 s"):
        verify("x", "y", 0.3)
    assert time.monotonic() - start < checker.WALL_SECONDS
    assert unfinished() == before + 1
    assert children() == []
    monkeypatch.undo()
    assert verify("2x", "x+x")[0]


def test_a_process_that_does_nothing_is_killed_after_the_wall_clock_limit(monkeypatch: pytest.MonkeyPatch):
    pid = worker_pid()
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(checker, "WALL_SECONDS", 0.5)
    with pytest.raises(GivenUp, match="took more than 0.5 s"):
        verify("2x", "x+x")
    assert gone(pid)
    monkeypatch.undo()
    assert verify("2x", "x+x")[0]


@pytest.mark.parametrize("when", ["between checks", "during a check"])
def test_a_killed_process_is_replaced_and_the_check_repeated(when: str):
    pid, before = worker_pid(), unfinished()
    if when == "during a check":
        os.kill(pid, signal.SIGSTOP)  # it has the request, and can not answer
    threading.Timer(0.0 if when == "between checks" else 0.3, os.kill, (pid, signal.SIGKILL)).start()
    if when == "between checks":
        assert gone(pid)
    assert verify("2x", "x+x")[0]
    assert unfinished() == before
    assert children() != [pid]


def test_a_check_that_ends_two_processes_is_given_up():
    first, killed = worker_pid(), []
    original = checker._Worker.ask

    def ask(worker: checker._Worker, request: dict, seconds: float) -> dict:
        os.kill(worker.pid, signal.SIGKILL)
        killed.append(worker.pid)
        return original(worker, request, seconds)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(GivenUp, match="ended with status -9"):
        patch.setattr(checker._Worker, "ask", ask)
        verify("2x", "x+x")
    assert len(set(killed)) == 2 and first in killed
    assert verify("2x", "x+x")[0]


def test_several_threads_share_the_process_and_get_their_own_verdicts():
    pairs = [(f"{n}x", f"{n // 2}x+{n - n // 2}x") for n in range(2, 26)]
    wrong = [(f"{n}x", f"{n + 1}x") for n in range(24)]
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(
            threads.map(lambda pair: verify(*pair)[0], [p for both in zip(pairs, wrong, strict=True) for p in both])
        )
    assert verdicts == [True, False] * 24
    assert len(children()) == 1


def test_a_forked_process_starts_its_own():
    pid = worker_pid()
    forked = os.fork()
    if forked == 0:
        with contextlib.suppress(BaseException):
            own = [c.pid for c in psutil.Process().children()]
            right = verify("2x", "x+x")[0] and not verify("2x", "3x")[0]
            mine = children()
            os._exit(0 if own == [] and right and len(mine) == 1 and mine != [pid] else 1)
        os._exit(2)
    assert verify("3x", "x+2x")[0]
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert children() == [pid]


def test_a_fork_while_another_thread_checks_does_not_deadlock():
    worker_pid()
    thread = threading.Thread(target=lambda: equal("(x+1)^{900}", "(x+1)^{899}(x+2)"))
    thread.start()
    time.sleep(0.1)
    forked = os.fork()
    if forked == 0:
        signal.alarm(120)
        with contextlib.suppress(BaseException):
            os._exit(0 if verify("2x", "x+x")[0] else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    thread.join()


PARENT = """
import os, sys, time, psutil
from derl_gym.tasks.answers.checker import verify
verify("x", "y")
(worker,) = psutil.Process().children()
fork = os.fork()
if fork == 0:  # it must hold no end of the pipe
    time.sleep(60)
    os._exit(0)
print(worker.pid, fork, flush=True)
time.sleep(60)
"""


def test_the_process_dies_with_its_parent_though_a_fork_lives_on():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker, fork = map(int, parent.stdout.readline().split())
        try:
            assert psutil.pid_exists(worker)
            parent.kill()
            assert gone(worker)
            assert psutil.pid_exists(fork)
        finally:
            os.kill(fork, signal.SIGKILL)


def test_an_interrupted_check_leaves_no_stale_reply():
    pid = worker_pid()
    os.kill(pid, signal.SIGSTOP)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        verify("2x", "x+x")
    assert gone(pid)
    assert not verify("2x", "3x")[0]


def test_without_math_verify_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "math_verify.py").write_text("raise ImportError('No module named math_verify')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for _ in range(2):  # an error is not cached
        with pytest.raises(ImportError, match=r"pip install 'derl-gym\[train\]'"):
            equal(r"\sqrt{8}", r"2\sqrt{2}")
    assert equal("1,234", "1234")
    assert children() == []
    monkeypatch.undo()
    assert equal(r"\sqrt{8}", r"2\sqrt{2}")


def test_time_that_is_over_counts_though_the_exception_was_swallowed():
    def stubborn(answer: str, truth: str) -> bool:
        for _ in range(2):
            with contextlib.suppress(BaseException):
                while True:
                    pass
        return True

    handler = signal.signal(signal.SIGVTALRM, _out_of_time)
    try:
        assert judge(stubborn, "x", "x", 1.0) == {"unfinished": "it needs more than 1 s"}
        assert judge(lambda answer, truth: True, "x", "x", 0.2)["equal"] is True
    finally:
        signal.signal(signal.SIGVTALRM, handler)


def test_memory_is_bounded():
    def greedy(answer: str, truth: str) -> bool:
        raise MemoryError

    assert judge(greedy, "x", "x", 1.0) == {"unfinished": "it needs more than 2048 MB"}
    if sys.platform == "linux":
        assert psutil.Process(worker_pid()).rlimit(psutil.RLIMIT_AS)[0] == 2 << 30


def test_what_a_library_prints_is_no_reply():
    code = (
        "import runpy, sys, types, io\n"
        "fake = types.ModuleType('math_verify')\n"
        "fake.LatexExtractionConfig = lambda **k: None\n"
        "fake.parse = lambda *a, **k: print('noise') or [1]\n"
        "fake.verify = lambda *a, **k: True\n"
        "sys.modules['math_verify'] = fake\n"
        f"runpy.run_path({checker._WORKER.as_posix()!r}, run_name='__main__')\n"
    )
    request = '{"answer": "1", "truth": "1", "seconds": 1}\n'
    done = subprocess.run([sys.executable, "-c", code], input=request, capture_output=True, text=True, timeout=120)
    ready, reply = done.stdout.splitlines()
    assert ready == '{"ready": true}' and '"equal": true' in reply
    assert "noise" in done.stderr
