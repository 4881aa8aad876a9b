"""A search in a process of its own: read while it runs, private, and every trial knows where it comes from."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import derl_gym
from derl_gym.cli import main
from derl_gym.trials.ledger import Ledger, LedgerError

SUPPORT = Path(__file__).parents[1] / "support"


def ended(run: Path) -> int:
    """Trials that have ended so far."""
    try:
        with Ledger(run, readonly=True) as ledger:
            return sum(row["status"] == "scored" for row in ledger.trials())
    except LedgerError:
        return 0


@pytest.mark.slow
def test_a_search_is_read_while_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, steps = tmp_path / "run", 6
    search = ["search", "toy_ids:DERL-Tested-v0", "--agent", "random", "--outer-steps", str(steps), "--keep-policies"]
    process = subprocess.Popen(
        [sys.executable, "-m", "derl_gym.cli", *search, "--out", str(run)],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=0o022,
    )
    try:
        deadline = time.monotonic() + 240
        while not ended(run):
            assert process.poll() is None and time.monotonic() < deadline, "no trial has ended"
            time.sleep(0.05)
        assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
        assert main(["export", str(run), "--out", str(tmp_path / "tables")]) == 0
        assert process.poll() is None, "the search is not over yet"
        said = capsys.readouterr().out
        assert "random" in said and "trials.csv: " in said
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, output
    with Ledger(run, readonly=True) as ledger:
        proposals, trials = ledger.proposals(), ledger.trials()
    assert len(proposals) == 3 * steps and {row["status"] for row in proposals} <= {"scored", "invalid"}
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    for row in trials:
        assert (row["host"], row["device"]) == (socket.gethostname(), "cpu")
        assert row["code"].startswith(f"{derl_gym.__version__}+") and len(row["config"]) == 24
        assert {"python", "torch", "transformers", "trl"} <= set(row["versions"])
    assert len({row["config"] for row in trials}) == len({row["code"] for row in trials}) == 1

    assert main(["train", "--run", str(run)]) == main(["report", str(run)]) == 0
    assert list(run.glob("trials/*/policy/*.safetensors")) and list(run.glob("finals/**/*.safetensors"))
    for path in (run, *run.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
