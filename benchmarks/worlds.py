"""How fast the text worlds are, and how much memory they take: ALFWorld with and without the memo, ScienceWorld.

    python benchmarks/worlds.py [--data-dir FOLDER] [--out worlds.json]

A policy that draws commands at random plays a few turns of each game. CPU seconds are those of the workers and of all
that they started, so they depend less on what else the machine does than seconds of the clock. Without ALFWorld's
published games, games made here are played.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from derl_gym.tasks.worlds import Turn, WorldFailed, WorldPool
from derl_gym.tasks.worlds.alfworld import ALFWorld
from derl_gym.tasks.worlds.alfworld_games import generate

ALFWORLD = "derl_gym.tasks.worlds.alfworld:ALFWorld"
SCIENCEWORLD = "derl_gym.tasks.worlds.scienceworld:ScienceWorld"
GROUP = 4
"""Episodes of each game, as in a GRPO group."""
TURNS = 10


def cpu_seconds(pool: WorldPool) -> float:
    """What the pool's workers have used so far, with what they started."""
    spent = 0.0
    for pid in pool.pids:
        worker = psutil.Process(pid)
        for process in (worker, *worker.children(recursive=True)):
            times = process.cpu_times()
            spent += times.user + times.system
    return spent


def memory(pool: WorldPool) -> dict[str, float]:
    """MB of the first worker, and of what it started."""
    worker = psutil.Process(pool.pids[0])
    started = sum(process.memory_info().rss for process in worker.children(recursive=True))
    return {"worker_mb": worker.memory_info().rss / 1e6, "started_mb": started / 1e6}


class Players:
    """Episodes in the slots of a pool, played at random."""

    def __init__(self, pool: WorldPool) -> None:
        self.pool = pool
        self.draw = random.Random(0)
        self.turns: dict[int, Turn] = {}

    def begin(self, games: dict[int, str]) -> None:
        """Reset the slots."""
        self.turns = _sound(self.pool.reset_all(games))

    def move(self) -> int:
        """One command for every live episode; how many there were."""
        live = {slot: self.draw.choice(turn.admissible) for slot, turn in self.turns.items() if not turn.over}
        self.turns |= _sound(self.pool.step_all(live))
        return len(live)


def _sound(turns: dict[int, Turn | WorldFailed]) -> dict[int, Turn]:
    for turn in turns.values():
        if isinstance(turn, WorldFailed):
            raise turn
    return turns  # type: ignore[return-value]


def calls(world: str, options: dict[str, Any], games: list[str]) -> dict[str, Any]:
    """CPU seconds of a reset of a new game, of another reset of the same, and of a step; one worker, one slot."""
    spent: dict[str, float] = {"first_reset": 0.0, "reset_again": 0.0, "step": 0.0}
    steps = 0
    with WorldPool(world, options) as pool:
        players = Players(pool)
        players.begin({0: games[0]})  # loads what is loaded once
        for game in games[1:]:
            marks = [cpu_seconds(pool)]
            for _ in range(2):
                players.begin({0: game})
                marks.append(cpu_seconds(pool))
            steps += sum(players.move() for _ in range(TURNS))
            marks.append(cpu_seconds(pool))
            for name, before, after in zip(spent, marks, marks[1:], strict=False):
                spent[name] += after - before
        sizes = memory(pool)
    resets = len(games) - 1
    return {
        "cpu_seconds_first_reset": spent["first_reset"] / resets,
        "cpu_seconds_reset_again": spent["reset_again"] / resets,
        "cpu_seconds_step": spent["step"] / steps,
        **sizes,
    }


def throughput(world: str, options: dict[str, Any], games: list[str], workers: int) -> dict[str, Any]:
    """Episodes per second when groups of episodes are played at once, in waves where there are not enough slots."""
    episodes = [game for game in games for _ in range(GROUP)]
    steps = 0
    with WorldPool(world, options, workers=workers) as pool:
        players = Players(pool)
        players.begin({slot: games[0] for slot in range(workers)})
        spent, begin = cpu_seconds(pool), time.perf_counter()
        for first in range(0, len(episodes), pool.slots):
            players.begin(dict(enumerate(episodes[first : first + pool.slots])))
            steps += sum(players.move() for _ in range(TURNS))
        seconds, spent = time.perf_counter() - begin, cpu_seconds(pool) - spent
        sizes = memory(pool)
    return {
        "workers": workers,
        "episodes": len(episodes),
        "episodes_per_second": len(episodes) / seconds,
        "steps_per_second": steps / seconds,
        "cpu_seconds_per_episode": spent / len(episodes),
        "cores_used": spent / seconds,
        **sizes,
    }


def alfworld(data_dir: str | None, games: int, folder: Path) -> dict[str, Any]:
    """ALFWorld, on the published games where they are."""
    options: dict[str, Any] = {"data_dir": data_dir}
    try:
        ids = ALFWorld(**options).games("train")
    except FileNotFoundError:
        generate(folder, {"train": (games + 5) // 6})
        options = {"data_dir": str(folder), "check_data": False}
        ids = ALFWorld(**options).games("train")
    chosen = random.Random(0).sample(ids, games)
    report: dict[str, Any] = {"games": "made here" if "check_data" in options else "published"}
    report["memo"] = calls(ALFWORLD, options, chosen)
    report["no_memo"] = calls(ALFWORLD, options | {"memo": False}, chosen)
    report["throughput"] = [throughput(ALFWORLD, options, chosen, workers) for workers in (1, 2, 4)]
    report["throughput_without_memo"] = throughput(ALFWORLD, options | {"memo": False}, chosen, 2)
    with WorldPool(ALFWORLD, options) as pool:
        for live in (1, 16, 64):
            Players(pool).begin({slot: chosen[slot % len(chosen)] for slot in range(live)})
            report[f"worker_mb_with_{live}_episodes"] = memory(pool)["worker_mb"]
    return report


def scienceworld(games: int) -> dict[str, Any]:
    """ScienceWorld, preset easy."""
    with WorldPool(SCIENCEWORLD) as pool:
        chosen = random.Random(0).sample(pool.games("train"), games)
    report: dict[str, Any] = {"calls": calls(SCIENCEWORLD, {}, chosen)}
    report["throughput"] = [throughput(SCIENCEWORLD, {}, chosen, workers) for workers in (1, 2, 4)]
    return report


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="ALFWorld's games; default: where a task would look")
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report: dict[str, Any] = {"cores": os.cpu_count(), "load_average_before": os.getloadavg()[0]}
        report["alfworld"] = alfworld(arguments.data_dir, arguments.games, Path(folder))
        report["scienceworld"] = scienceworld(arguments.games)
    print(json.dumps(report, indent=1))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
