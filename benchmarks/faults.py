"""What do kills, full disks, damage and wrong clocks do to a search? Nothing that is found in its ledger afterwards.

    python benchmarks/faults.py --out benchmarks/results/faults.json

Searches on DERL-Arithmetic-v0, each with one fault at a seeded random moment, then `derl-gym resume` until finished.
Its ledger is compared with that of the same search without a fault. Searches in processes of this machine and searches
on a Ray cluster (two nodes, started here) go on side by side. Faults that this machine does not allow are skipped, and
the table says why: mounting needs root, the Ray kinds need Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fault_kinds import KINDS
from fault_search import MARK, Missed, Search, Skipped, recorded

AGENTS = ("random", "derl")
POOLS = ("processes", "ray")
COLUMNS = ("searches", "lost", "duplicated", "wrong", "orphans", "equal")
_SMALL: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False}


class Cluster:
    """A Ray cluster of two nodes with one CPU each, of which the second may die.

    Attributes:
        mark: What its processes have in their environment as ``MARK``.
        environment: What a search needs to find it.
    """

    def __init__(self, folder: Path) -> None:
        self.mark = f"cluster-{os.getpid()}"
        (folder / "ray").mkdir()
        os.environ |= {"RAY_TMPDIR": str(folder / "ray"), "RAY_worker_niceness": "0", MARK: self.mark}
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
        from ray.cluster_utils import Cluster as RayCluster

        self._cluster = RayCluster(initialize_head=True, head_node_args=_SMALL | {"num_cpus": 1})
        self._node = self._cluster.add_node(num_cpus=1, **_SMALL)
        self.environment = {"RAY_ADDRESS": str(self._cluster.address)}

    def kill(self) -> None:
        """Kill the second node's raylet, from which all its processes descend. It stays behind as a zombie."""
        self._node.all_processes["raylet"][0].process.kill()

    def replace(self) -> None:
        """Clear the second node away and start another."""
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._node = self._cluster.add_node(num_cpus=1, **_SMALL)

    def close(self) -> None:
        """End it."""
        self._cluster.shutdown()


@dataclasses.dataclass
class Lane:
    """The searches of one pool, one after another, and the searches without a fault that they are compared with."""

    pool: str
    folder: Path
    cluster: Cluster | None
    whole: dict[str, tuple[dict[str, Any], float]] = dataclasses.field(default_factory=dict)

    def search(self, kind: str, agent: str, name: str, seed: str = "") -> Search:
        """A search that has not begun."""
        reference, seconds = self.whole.get(agent, (None, 0.0))
        environment = None if self.cluster is None else self.cluster.environment
        folder = self.folder / name
        return Search(kind, agent, self.pool, folder, seed, reference, seconds, self.cluster, environment)

    def measure(self, agent: str) -> None:
        """Search once without a fault."""
        search = self.search("none", agent, f"{self.pool}-{agent}")
        try:
            began = time.monotonic()
            code, said = search.outcome()
            if code:
                raise RuntimeError(f"a search without a fault failed: {said}")
            self.whole[agent] = (recorded(search.run_dir), time.monotonic() - began)
        finally:
            search.clear()

    def strike(self, number: int, kind: str, agent: str, seed: int) -> dict[str, Any]:
        """One search with its fault; returns its row."""
        if agent not in self.whole:
            self.measure(agent)
        began = time.monotonic()
        row = {"kind": kind, "agent": agent, "pool": self.pool}
        for attempt in range(5):
            search = self.search(kind, agent, f"{number}-{attempt}", f"{seed}-{number}-{attempt}")
            try:
                KINDS[kind](search)
                search.finish()
                found = dataclasses.asdict(search.compare())
            except Missed:
                continue
            except Skipped as reason:
                return row | {"skipped": str(reason)}
            finally:
                search.clear()
            return row | found | {"seconds": round(time.monotonic() - began, 1)}
        return row | {"skipped": "the search was over before the fault, five times"}


def plan(searches: int, kinds: Sequence[str]) -> list[tuple[int, str, str, str]]:
    """Number, kind, agent and pool of every search: the kinds in turn, each with all agents and pools in turn."""
    found = []
    for number in range(searches):
        turn = number // len(kinds)
        kind = kinds[number % len(kinds)]
        pool = "ray" if kind.startswith("Ray") else POOLS[(turn // 2 + number) % 2]
        found.append((number, kind, AGENTS[turn % 2], pool))
    return found


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: a line for every kind of fault, and one for all."""
    lines = [
        "| fault | searches | lost | duplicated | wrong | orphans | equal ledgers |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in [*KINDS, "all"]:
        chosen = [row for row in rows if kind in ("all", row["kind"])]
        made = [row for row in chosen if "skipped" not in row]
        if made:
            sums = [sum(row[name] for row in made) for name in COLUMNS[1:]]
            lines.append(f"| {kind} | {len(made)} | {' | '.join(map(str, sums[:-1]))} | {sums[-1]} of {len(made)} |")
        for reason in sorted({row["skipped"] for row in chosen if "skipped" in row and kind != "all"}):
            lines.append(f"| {kind} | skipped: {reason} | | | | | |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write what was found. Returns 1 when a search was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=50)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS], metavar="KIND", help=f"{[*KINDS]}")
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=[*POOLS])
    parser.add_argument("--seed", type=int, default=0, help="of the faults' moments")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that mounts and processes are cleared away
    planned = plan(args.searches, args.kinds)
    rows: list[dict[str, Any]] = []
    began = time.monotonic()

    stopped = threading.Event()

    def go(pool: str) -> None:
        for number, kind, agent, place in planned:
            if place == pool and not stopped.is_set():
                row = lanes[pool].strike(number, kind, agent, args.seed)
                rows.append({"number": number} | row)
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)

    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        lanes = {"processes": Lane("processes", folder, None)}
        if any(place == "ray" for *_, place in planned):
            if importlib.util.find_spec("ray") is None or "ray" not in args.pools:
                reason = "Ray is not installed" if "ray" in args.pools else "not asked for"
                left = [entry for entry in planned if entry[3] == "ray"]
                planned = [entry for entry in planned if entry[3] != "ray"]
                rows += [{"number": n, "kind": k, "agent": a, "pool": p, "skipped": reason} for n, k, a, p in left]
            else:
                cluster = Cluster(folder)
                stack.callback(cluster.close)
                lanes["ray"] = Lane("ray", folder, cluster)
        with ThreadPoolExecutor(1) as threads:
            beside = threads.submit(go, "processes")
            try:
                if "ray" in lanes:
                    go("ray")  # here, since Ray starts nodes in the main thread alone
                beside.result()
            finally:
                stopped.set()
    rows.sort(key=lambda row: row["number"])
    seconds = round(time.monotonic() - began)
    lines = table(rows)
    print("\n".join(lines), f"\n{seconds} s", sep="\n")
    if args.out is not None:
        command = shlex.join(["python", "benchmarks/faults.py", *(arguments or sys.argv[1:])])
        found = {"command": command, "seconds": seconds, "seed": args.seed, "table": lines, "searches": rows}
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    good = all(
        row.get("equal") and not any(row[name] for name in COLUMNS[1:-1]) for row in rows if "skipped" not in row
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
