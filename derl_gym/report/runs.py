"""Run directories as the report reads them: ledgers, which agent wrote them, and what its programs are like.

Only reads: also while a search is running, also of a directory that is not ours. Ledgers know the search but
not the agent: ``search.json`` beside the ledger, written by the command line, names it, and so does the agent's
checkpoint.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from derl_gym.inner.config import CLOCKWORK
from derl_gym.programs import Analysis, InvalidProgram, RewardProgram
from derl_gym.protocol import TEST_ANALYSIS
from derl_gym.tasks import Primitive, load_task
from derl_gym.trials.ledger import Ledger

NO_DIFFERENCE = (
    "environment",
    "variant",
    "inner",
    "inner_config",
    "task_options",
    "task_name",
    "data",
    "data_dir",
    "final_inner",
    "keep_policies",
    "preset",
)
"""What no label tells of a configuration as it stands: told otherwise, or nothing that a score depends on."""
SEARCH_FILE = "search.json"
"""What a search was started with: environment, settings, agent, options, seed."""

Row = dict[str, Any]
States = tuple[tuple[float, ...], ...] | None


@dataclass(frozen=True)
class Run:
    """One run directory.

    Attributes:
        folder: Where it is.
        label: The agent, with whatever sets it apart from the other runs of the report.
        agent: The agent's name; the folder's where nobody said.
        options: The agent's options.
        seed: The search's seed, ``None`` where it is unknown.
        config: The ledger's configuration.
        proposals: The ledger's proposals, each with its ``structure`` in addition.
        trials: The ledger's trials by identity, without their curves; see :meth:`with_curve`.
        rungs: Those that successive halving made up to a rung; not among ``trials``.
        finals: The ledger's final trainings.
        tests: Test scores by trial, where the finished search was analysed on the test split.
        references: Identities of the trials that were reference runs.
        proposer_seconds: What the proposer took, in all.
        primitives: g1..gk; empty where the task cannot be loaded here.
        states: The task's states, a tuple per state; ``None`` where the task names none.
        repeats: Run directories of the same search with the same seed, which are left out.
    """

    folder: Path
    label: str
    agent: str
    options: Row
    seed: int | None
    config: Row
    proposals: tuple[Row, ...]
    trials: dict[str, Row]
    finals: tuple[Row, ...]
    tests: dict[str, float]
    references: frozenset[str]
    proposer_seconds: float
    primitives: tuple[Primitive, ...]
    states: States = None
    rungs: dict[str, Row] = field(default_factory=dict)
    repeats: tuple[Path, ...] = ()

    def steps(self) -> dict[int, list[list[Row]]]:
        """Complete groups by outer step: one list of proposals per episode.

        A group counts when nothing in it is still waiting: the mean of a part would be another number.
        """
        return self._steps

    @functools.cached_property
    def _steps(self) -> dict[int, list[list[Row]]]:
        groups: dict[tuple[int, int], list[Row]] = {}
        for row in self.proposals:
            groups.setdefault((row["step"], row["episode"]), []).append(row)
        whole = self.config.get("group_size", 1)
        steps: dict[int, list[list[Row]]] = {}
        for (step, _), rows in sorted(groups.items()):
            if len(rows) >= whole and all(row["status"] != "proposed" for row in rows):
                steps.setdefault(step, []).append(rows)
        return steps

    def with_curve(self, trial: Row) -> Row:
        """One of :attr:`trials` with its learning curve, read now."""
        with Ledger(self.folder, readonly=True) as ledger:
            return ledger.trial(trial["identity"]) or trial

    def parse(self, program: str) -> RewardProgram | None:
        """The program, or ``None`` where it is ill-formed."""
        try:
            return RewardProgram.parse(program, k=len(self.primitives) or 9, primitives=self.config.get("primitives"))
        except InvalidProgram:
            return None

    def analyse(self, program: str) -> Analysis | None:
        """What is known about the program; ``None`` where it is ill-formed or the task cannot be loaded."""
        parsed = self.parse(program) if self.primitives else None
        return None if parsed is None else _analysis(parsed, self.primitives, self.states)


@functools.lru_cache(maxsize=1 << 16)
def _structure(program: RewardProgram, primitives: tuple[Primitive, ...], states: States) -> str:
    return _analysis(program, primitives, states).structure


@functools.lru_cache(maxsize=4096)
def _analysis(program: RewardProgram, primitives: tuple[Primitive, ...], states: States) -> Analysis:
    return program.analyse(primitives, states=states)


def load_runs(run_dirs: Iterable[str | Path | Run]) -> list[Run]:
    """Read run directories, and those below a directory that is none itself. Runs that were read already are returned.

    A search that is there twice, with the same label and seed, counts once: the first stays and names the others
    as its ``repeats``. Counted as two seeds they would make an interval too tight.

    Raises:
        FileNotFoundError: when there is no ledger in or below one of them.
        LedgerError: when a ledger cannot be read.
    """
    given = list(run_dirs)
    if runs := [run for run in given if isinstance(run, Run)]:
        return runs
    folders: list[Path] = []
    for run_dir in (Path(path) for path in given if not isinstance(path, Run)):
        found = sorted(path.parent for path in run_dir.rglob("ledger.sqlite"))
        if not found:
            raise FileNotFoundError(f"there is no ledger.sqlite in or below {run_dir}")
        folders += [folder for folder in found if folder not in folders]
    runs = [_load(folder) for folder in folders]
    return _once([replace(run, label=label) for run, label in zip(runs, _labels(runs), strict=True)])


def _once(runs: Sequence[Run]) -> list[Run]:
    """The first run of each label and seed, with the others as its repeats. Unknown seeds are all different."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.folder if run.seed is None else (run.label, run.seed), []).append(run)
    return [replace(first, repeats=tuple(run.folder for run in others)) for first, *others in groups.values()]


def _load(folder: Path) -> Run:
    with Ledger(folder, readonly=True) as ledger:
        config = ledger.config
        trials = {row["identity"]: row for row in ledger.trials(curves=False)}
        proposals, finals = ledger.proposals(), ledger.finals()
        episodes, thought = ledger.episodes(), sum(ledger.proposer_seconds().values())
    rungs = {}
    if config.get("halving"):  # one that ended before its rung is recorded as the whole training as well
        answers = {row["identity"] for row in proposals} | {row["reference"] for row in episodes}
        rungs = {
            identity: row
            for identity, row in trials.items()
            if (row["result"] or {}).get("of_steps") or identity not in answers
        }
    asked = _agent_of(folder)
    seed = asked.get("seed", episodes[0]["seed"] if episodes else None)
    agent = str(asked.get("agent") or folder.name)
    try:
        task = load_task(config["task"], config.get("task_options"), config.get("flip", ()))
        primitives, states = task.primitives, task.states()
    except (KeyError, TypeError, ValueError, OSError):
        primitives, states = (), None
    if states is not None:
        states = tuple(tuple(map(float, state)) for state in states)  # hashable, so that analyses can be kept
    options = asked.get("agent_options") or asked.get("options") or {}
    tests = _json(folder / TEST_ANALYSIS)
    references = frozenset(row["reference"] for row in episodes if row["reference"])
    run = Run(
        folder=folder,
        label=agent,
        agent=agent,
        options=options,
        seed=seed,
        config=config,
        proposals=(),
        trials={identity: row for identity, row in trials.items() if identity not in rungs},
        rungs=rungs,
        finals=tuple(finals),
        tests=tests,
        references=references,
        proposer_seconds=thought,
        primitives=primitives,
        states=states,
    )
    for row in proposals:
        parsed = run.parse(row["program"]) if primitives else None
        row["structure"] = "invalid" if parsed is None else _structure(parsed, primitives, states)
    return replace(run, proposals=tuple(proposals))


def _agent_of(folder: Path) -> Row:
    """The search file, else the newest checkpoint's own description, else nothing."""
    for path in (folder / SEARCH_FILE, *sorted(folder.glob("checkpoints/*/agent.json"), reverse=True)):
        found = _json(path)
        options = found.get("agent_options", found.get("options", {}))
        if isinstance(found.get("agent"), str) and isinstance(options, dict):
            return found
    return {}


def _json(path: Path) -> Row:
    """The object in a file; nothing where there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _labels(runs: Sequence[Run]) -> list[str]:
    """Agent names, and after them the environment, variant, options and settings in which runs differ.

    Options are compared among an agent's runs, settings among those of an environment and variant: another
    environment has other settings anyway.
    """
    settings = [_settings(run.config) for run in runs]
    environments = {run.config.get("environment") for run in runs}
    variants = {run.config.get("variant") for run in runs}
    labels = []
    for run, own in zip(runs, settings, strict=True):
        parts = [run.agent]
        if len(environments) > 1:
            parts.append(str(run.config.get("environment")))
        if len(variants) > 1:
            parts.append(str(run.config.get("variant")))
        others = [other.options for other in runs if other.agent == run.agent]
        for key in sorted({key for options in others for key in options}):
            if any(options.get(key) != run.options.get(key) for options in others):
                parts.append(f"{key}={run.options.get(key, 'default')}")
        alike = [
            found
            for other, found in zip(runs, settings, strict=True)
            if all(other.config.get(name) == run.config.get(name) for name in ("environment", "variant"))
        ]
        for key in sorted({key for found in alike for key in found}):
            if any(found.get(key) != own.get(key) for found in alike):
                parts.append(f"{key}={own.get(key, 'default')}")
        labels.append(" ".join(parts))
    return labels


def _settings(config: Row) -> dict[str, str]:
    """What sets searches apart, as text; inner and task settings one by one, and nothing where nothing was set."""
    flat = {key: value for key, value in config.items() if key not in NO_DIFFERENCE}
    flat |= {f"inner.{key}": value for key, value in (config.get("inner_config") or config.get("inner") or {}).items()}
    for name in CLOCKWORK:
        flat.pop(f"inner.{name}", None)
    flat |= {f"final_inner.{key}": value for key, value in (config.get("final_inner") or {}).items()}
    flat |= {f"data.{split}": record["sha256"][:8] for split, record in (config.get("data") or {}).items()}
    flat |= {f"task.{key}": value for key, value in (config.get("task_options") or {}).items()}
    return {
        key: ",".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in flat.items()
        if value not in (None, "", [], {})
    }
