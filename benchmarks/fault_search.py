"""One search with one fault in it, for faults.py: started, watched, broken off, resumed and compared.

What strikes it is in fault_kinds.py. The search is a process of its own, as a user's is: everything goes through the
command ``derl-gym``, and what is known of it is what its ledger, its logs and the table of processes say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from derl_gym.trials.ledger import Ledger, LedgerError

ENVIRONMENT = "DERL-Arithmetic-v0"
SETTINGS = ["--outer-steps", "3", "--group-size", "4", "--workers", "2"]
INNER = ["--inner", "steps=4", "eval_examples=100", "timeout=60"]
OPTIONS = {"random": [], "derl": ["--agent-options", "cold_start_steps=50"]}
MARK = "DERL_GYM_FAULTS"
"""Environment variable that all processes of a search carry."""
CLOCKS = {"proposed_at", "settled_at", "started_at", "ended_at", "made_at", "seconds", "pid", "host", "attempts"}
CLOCKS_OF_RESULT = {"train_seconds", "eval_seconds", "peak_memory"}
PATIENCE = 5.0
"""Seconds after which a process that is left counts as an orphan."""
LONGEST = 180.0
"""Seconds after which a command counts as hanging."""


class Skipped(Exception):
    """This machine does not allow the fault; the message says why."""


class Missed(Exception):
    """The search was over before the fault could strike."""


@dataclasses.dataclass
class Found:
    """What a search with a fault came to, against the search without one.

    Attributes:
        lost: Scored trials that were gone, or trained anew, and trials that are missing in the end.
        duplicated: Trials that ran again although they were scored, and trials that the other search has not.
        wrong: Proposals and trials with another status or score; commands that ended otherwise than they should.
        orphans: Processes that were left ``PATIENCE`` seconds after a command had ended.
        equal: Whether the ledgers are equal but for :data:`CLOCKS`.
        attempts: Attempts at inner runs beyond the first one of each, which the fault was answered with.
        notes: What went wrong, in words.
    """

    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    orphans: int = 0
    equal: bool = False
    attempts: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)


class Search:
    """One search and what happens to it.

    Args:
        kind: The fault's name.
        agent: Who proposes.
        pool: Where inner runs go.
        folder: A folder of its own; the run directory is ``run`` in it.
        seed: Of the fault's moment.
        reference: :func:`recorded` of the search without a fault; ``None`` for that search itself.
        seconds: What that one took.
        cluster: The two nodes, where ``pool`` is ``"ray"``.
        environment: Environment variables on top of the process's own.
    """

    def __init__(
        self,
        kind: str,
        agent: str,
        pool: str,
        folder: Path,
        seed: str,
        reference: dict[str, Any] | None = None,
        seconds: float = 0.0,
        cluster: Any = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.kind, self.agent, self.pool, self.cluster = kind, agent, pool, cluster
        self.folder, self.run_dir = folder, folder / "run"
        self.rng = random.Random(seed)
        self.reference, self.seconds = reference, seconds
        self.found = Found()
        self.mark = f"{folder.name}-{os.getpid()}"
        self.environment = {**os.environ, **(environment or {}), MARK: self.mark}
        self.extra: list[str] = []
        self.ignored: set[str] = set()
        self.process: subprocess.Popen[str] | None = None
        self.after = contextlib.ExitStack()
        self._scored: dict[str, tuple[str, int]] = {}

    # -- commands ---------------------------------------------------------------------------------------

    @property
    def command(self) -> list[str]:
        """What goes on with the search; before it has a plan in its folder, what starts it."""
        if (self.run_dir / "search.json").exists():
            return ["resume", str(self.run_dir)]
        told = [ENVIRONMENT, "--agent", self.agent, *OPTIONS[self.agent], "--pool", self.pool, *SETTINGS, *INNER]
        return ["search", *told, *self.extra, "--out", str(self.run_dir)]

    def start(self, command: list[str] | None = None) -> subprocess.Popen[str]:
        """Start a command; the search's own is ``process``."""
        started = subprocess.Popen(
            [sys.executable, "-m", "derl_gym.cli", *(command or self.command)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if command is None:
            self.process = started
        return started

    def ended(self, *words: str, codes: Iterable[int] = (0,)) -> int:
        """Wait for the end of the search's process, see what it left, and count its orphans.

        Args:
            *words: What it must say when its exit code is not 0.
            codes: Exit codes that are right.
        """
        assert self.process is not None
        code, said = self.wait(self.process)
        if code not in codes or (code > 0 and not any(word in said for word in words)):
            self.complain(f"the search ended with exit code {code}: {said[-600:]}")
        self.look()
        self.count_orphans()
        return code

    def look(self) -> None:
        """Remember what is scored by now, and how often each of it has run."""
        with contextlib.suppress(LedgerError), Ledger(self.run_dir, readonly=True) as ledger:
            for row in ledger.trials(curves=False):
                if row["status"] == "scored":
                    self._scored.setdefault(row["identity"], (row["ended_at"], self.runs(row["identity"])))

    def runs(self, identity: str) -> int:
        """How often a trial has been begun, by its log."""
        with contextlib.suppress(OSError):
            return (self.run_dir / "trials" / identity / "log.txt").read_text().count("== attempt ")
        return 0

    def refused(self, *words: str) -> None:
        """Going on must end with exit code 1 or 2 and one of these words."""
        code, said = self.wait(self.start(self.command))
        if code not in (1, 2) or not any(word in said for word in words):
            self.complain(f"expected a refusal with {words}, got exit code {code}: {said[-600:]}")

    def outcome(self) -> tuple[int, str]:
        """Go on with the search; its exit code and what it said."""
        self.process = self.start()
        return self.wait(self.process)

    def finish(self) -> None:
        """Resume until the search is finished."""
        for _ in range(3):
            if recorded_steps(self.run_dir) >= 3 and self.process is not None and self.process.returncode == 0:
                return
            self.process = self.start()
            if self.ended() == 0:
                return
        self.complain("it was not finished after three times `resume`")

    def wait(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Exit code and output of a command that has been started."""
        try:
            said, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            self.complain(f"a command did not end within {LONGEST:g} s: {said[-600:]}")
        return process.returncode, said

    # -- moments ----------------------------------------------------------------------------------------

    def moment(self) -> None:
        """Wait for a random moment of the search: after one of its trials has started, and up to a second more.

        Raises:
            Missed: it was over before.
        """
        assert self.reference is not None
        trials = self.rng.randint(1, max(1, len(self.reference["trials"]) - 3))
        more = self.rng.uniform(0.0, 1.0)
        self.wait_until(lambda: len(self._running_or_ended()) >= trials)
        time.sleep(more)
        self.alive()

    def alive(self) -> None:
        """Make sure that the search still runs.

        Raises:
            Missed: it does not.
        """
        assert self.process is not None
        if self.process.poll() is not None:
            raise Missed

    def inner_run(self) -> int:
        """The process id of an inner run that runs now."""
        found: list[int] = []

        def look() -> bool:
            rows = [row for row in self._running_or_ended() if row["status"] == "running" and row["pid"]]
            found[:] = [row["pid"] for row in rows if psutil.pid_exists(row["pid"])]
            return bool(found)

        self.wait_until(look)
        return self.rng.choice(found)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that happens while the search runs."""
        deadline = time.monotonic() + LONGEST
        while not condition():
            self.alive()
            if time.monotonic() > deadline:
                raise Missed
            time.sleep(0.02)

    def _running_or_ended(self) -> list[dict[str, Any]]:
        try:
            with Ledger(self.run_dir, readonly=True) as ledger:
                return ledger.trials(curves=False)
        except LedgerError:
            return []

    # -- afterwards -------------------------------------------------------------------------------------

    def complain(self, note: str) -> None:
        """Something is wrong."""
        self.found.wrong += 1
        self.found.notes.append(" ".join(note.replace(str(self.folder), "FOLDER").split()))

    def count_orphans(self) -> None:
        """Count what is left of the search's processes after ``PATIENCE`` seconds."""
        deadline = time.monotonic() + PATIENCE
        while (left := self.family()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.found.orphans += len(left)
        self.found.notes += [f"orphan: {what[:200]}" for what in left.values()]

    def family(self) -> dict[int, str]:
        """Living processes of the search, those on the cluster's nodes included: process id -> command."""
        cluster = None if self.cluster is None else self.cluster.mark
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mark, words = process.environ().get(MARK), " ".join(process.cmdline())
                ours = mark == self.mark or (mark is not None and mark == cluster and "trials.server" in words)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = words
        return found

    def compare(self) -> Found:
        """What is in the ledger now, against the search without a fault."""
        assert self.reference is not None
        try:
            mine, other = recorded(self.run_dir, self.ignored), without(self.reference, self.ignored)
        except LedgerError as error:
            self.complain(f"the ledger cannot be read: {error}")
            return self.found
        compare(self.found, mine, other)
        with Ledger(self.run_dir, readonly=True) as ledger:
            now = {row["identity"]: row for row in ledger.trials(curves=False)}
        for identity, (ended_at, runs) in self._scored.items():
            row = now.get(identity)
            again = row is not None and self.runs(identity) > runs
            self.found.duplicated += again
            fetched = row is not None and row["seconds"] == 0.0  # from the cache, where the ledger was lost
            if row is None or row["status"] != "scored" or again or (row["ended_at"] != ended_at and not fetched):
                self.found.lost += 1
        self.found.attempts = sum(row["attempts"] - 1 for row in now.values())
        negative = [row["identity"] for row in now.values() if (row["seconds"] or 0.0) < 0]
        if negative:
            self.complain(f"trials that took less than no time: {negative}")
        return self.found

    def clear(self) -> None:
        """End what is left, undo what was done to the machine, delete the folder."""
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.communicate()
        self.after.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def recorded_steps(run_dir: Path) -> int:
    """Outer steps whose proposals have all ended."""
    try:
        with Ledger(run_dir, readonly=True) as ledger:
            rows = ledger.proposals()
    except LedgerError:
        return 0
    open_steps = {row["step"] for row in rows if row["status"] == "proposed"}
    return len({row["step"] for row in rows} - open_steps)


def recorded(run_dir: Path, ignored: Iterable[str] = ()) -> dict[str, Any]:
    """All that a ledger holds but :data:`CLOCKS` and the columns ``ignored``, and the agent's last checkpoint."""
    with Ledger(run_dir, readonly=True) as ledger:
        found = {
            "config": {name: value for name, value in ledger.config.items() if name != "cache_dir"},
            "episodes": ledger.episodes(),
            "proposer": sorted(ledger.proposer_seconds()),
            "proposals": ledger.proposals(),
            "trials": sorted(ledger.trials(), key=lambda row: row["identity"]),
            "checkpoint": None,
        }
        if (last := ledger.last_checkpoint(0)) is not None:
            files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in last[1].iterdir()}
            found["checkpoint"] = (last[0], files)
    return without(found, ignored)


def without(found: dict[str, Any], ignored: Iterable[str] = ()) -> dict[str, Any]:
    """What :func:`recorded` returns, without columns."""
    left = CLOCKS.union(ignored)

    def row_without(row: dict[str, Any]) -> dict[str, Any]:
        row = {name: value for name, value in row.items() if name not in left}
        if isinstance(row.get("result"), dict):
            row["result"] = {name: value for name, value in row["result"].items() if name not in CLOCKS_OF_RESULT}
        return row

    rows = {name: [row_without(row) for row in found[name]] for name in ("episodes", "proposals", "trials")}
    return {**found, **rows}


def compare(found: Found, mine: dict[str, Any], other: dict[str, Any]) -> None:
    """Count and describe how ``mine`` differs from ``other``, both of :func:`recorded`."""
    places = [
        {(row["episode"], row["step"], row["slot"]): row for row in ledger["proposals"]} for ledger in (mine, other)
    ]
    trials = [{row["identity"]: row for row in ledger["trials"]} for ledger in (mine, other)]
    for table, (here, there) in (("proposal", places), ("trial", trials)):
        found.lost += len(there.keys() - here.keys())
        found.duplicated += len(here.keys() - there.keys())
        for key in there.keys() & here.keys():
            wrong = (here[key]["status"], here[key]["score"]) != (there[key]["status"], there[key]["score"])
            found.wrong += wrong
            unlike = {name for name in here[key] | there[key] if here[key].get(name) != there[key].get(name)}
            if unlike:
                found.notes.append(f"{table} {key} differs in {', '.join(sorted(unlike))}")
    unlike = [name for name in ("config", "episodes", "proposer", "checkpoint") if mine[name] != other[name]]
    found.notes += [f"{name} differs" for name in unlike]
    found.equal = mine == other
