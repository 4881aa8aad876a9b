"""A search that is killed again and again ends with the ledger of one that was not."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from derl_gym.trials.ledger import Ledger

SUPPORT = Path(__file__).parents[1] / "support"
KILLS = 10


def recorded(run_dir: Path) -> tuple[list[tuple], list[tuple]]:
    """Everything but clocks, processes and attempts."""
    with Ledger(run_dir, readonly=True) as ledger:
        places = ("episode", "step", "slot", "actions", "program", "status", "score", "reason", "identity", "cached")
        runs = ("identity", "program", "key", "seed", "replicate", "policy", "status", "score", "tokens", "flops")
        proposals = [tuple(str(row[name]) for name in places) for row in ledger.proposals()]
        return proposals, sorted(tuple(str(row[name]) for name in runs) for row in ledger.trials())


def family(mark: str) -> list[psutil.Process]:
    """Living processes that carry the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get("DERL_GYM_TEST") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT), "DERL_GYM_TEST": mark}
    tool = [sys.executable, "-m", "derl_gym.cli"]
    search = ["search", "toy_ids:DERL-Digits-v0", "--agent", "derl-elite", "--outer-steps", "8", "--workers", "2"]
    search += ["--agent-options", "cold_start_steps=3"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    started = time.monotonic()
    subprocess.run([*tool, *search, "--out", str(whole)], env=environment, check=True, capture_output=True)
    length = time.monotonic() - started

    moments = random.Random(int(mark[:8], 16))
    kills = 0
    while True:
        # Before it has a plan in its folder, a search is started again; then it is resumed.
        command = ["resume", str(broken)] if (broken / "search.json").exists() else [*search, "--out", str(broken)]
        process = subprocess.Popen(
            [*tool, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            output, _ = process.communicate(timeout=length * moments.uniform(0.05, 0.5) if kills < KILLS else 300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            deadline = time.monotonic() + 60  # a server that still imports notices later
            while (left := family(mark)) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not left, f"left over after kill {kills}: {[p.cmdline() for p in left]}"
            continue
        assert process.returncode == 0, output
        break
    assert kills >= 5, "the search ended before it could be killed"
    assert recorded(broken) == recorded(whole)
    print(f"{kills} kills, {len(recorded(whole)[0])} proposals, {len(recorded(whole)[1])} trials")
