"""After a search: select the reward, train the final policy on the full training set, test it once.

The paper's sections 4.2 and appendix C. This is the only file that opens the test split.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Literal

from derl_gym.envs.identity import fingerprint, policy_fingerprint, policy_folder, trial_seed
from derl_gym.envs.outer_loop import InfrastructureFailure, OuterLoop
from derl_gym.envs.settings import Settings, layered
from derl_gym.inner.config import CLOCKWORK, InnerConfig
from derl_gym.inner.marks import remove_checkpoints, training_hash
from derl_gym.tasks.base import task_class
from derl_gym.trials.jobs import Job, Outcome
from derl_gym.trials.ledger import Ledger, RunDirectoryMismatch
from derl_gym.trials.pools import Pool, PoolKind, open_pool
from derl_gym.trials.private import private_folder, write_private

LOG = logging.getLogger("derl_gym")
Rule = Literal["last", "best"]
TEST_ANALYSIS = "test_analysis.json"
"""File of the test scores logged for analysis, in the run directory; no search reads it."""


class TestAlreadyOpened(RuntimeError):
    """The test split was opened before for these programs and this seed."""

    __test__ = False


def named_program(name: str, primitives: Sequence[str]) -> str:
    """A baseline by name, or the text itself.

    Args:
        name: ``"outcome"`` (g1), ``"outcome+format"`` (g1+g2), ``"average"`` (the uniform average of all
            primitives), the paper's section 4.1; anything else is a program already.
        primitives: Names of the task's primitives, g1 first.
    """
    name = name.strip()
    average = f"({'+'.join(primitives)})/{len(primitives)}"
    return {"outcome": "g1", "outcome+format": "g1+g2", "average": average}.get(name, name)


def settings_of(config: dict[str, Any]) -> Settings:
    """The environment settings that a ledger's configuration was made from."""
    fields = {field.name for field in dataclasses.fields(Settings)}
    given = {key: value for key, value in config.items() if key in fields}
    if "final_inner" not in given:  # a ledger of version 0.1
        given["final_inner"] = task_class(given["task"]).final_inner
    return Settings(**given)


def select(ledger: Ledger, rule: Rule = "last", episode: int = 0) -> list[str]:
    """The reward programs of a finished (or broken-off) search.

    Args:
        ledger: Of the search.
        rule: ``"last"``: the best of the last complete outer step (the paper's choice for DERL-base).
            ``"best"``: the best over all steps (its choice for random search). A class of equal programs
            that was scored more than once, with different seeds, counts with its mean. One that successive halving
            stopped has no score to compare.
        episode: Which search of the run directory.

    Returns:
        One program for variant "base". For "full", each round's selected program in order, whatever the rule.

    Raises:
        ValueError: when no outer step is complete, or none scored.
    """
    steps: dict[int, list[dict[str, Any]]] = {}
    for row in ledger.proposals(episode):
        steps.setdefault(row["step"], []).append(row)
    group_size = ledger.config["group_size"]
    complete = [
        rows
        for _, rows in sorted(steps.items())
        if len(rows) == group_size and all(row["status"] != "proposed" for row in rows)
    ]
    trials = ledger.trials(curves=False)
    classes = {row["identity"]: row["key"] for row in trials}
    rungs = {row["identity"] for row in trials if (row["result"] or {}).get("of_steps")}
    complete = [[row for row in rows if row["identity"] not in rungs] for rows in complete]
    best = [program for rows in complete if (program := _best_program(rows, classes)) is not None]
    if not best:
        raise ValueError(f"{ledger.run_dir} holds no complete outer step with a scored program: nothing to select")
    if ledger.config["variant"] == "full":
        return best
    overall = _best_program([row for rows in complete for row in rows], classes)
    return best[-1:] if rule == "last" or overall is None else [overall]


def _best_program(rows: Sequence[dict[str, Any]], classes: dict[str, str]) -> str | None:
    """A program of the class with the best mean score, the earlier of equals; ``None`` where none scored."""
    scored: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["status"] == "scored":
            scored.setdefault(classes.get(row["identity"]) or row["program"], []).append(row)
    if not scored:
        return None
    return max(scored.values(), key=lambda group: sum(row["score"] for row in group) / len(group))[0]["program"]


@dataclasses.dataclass(frozen=True)
class Final:
    """One final policy, tested.

    Attributes:
        programs: The reward programs, one per stage.
        seed: Of the training.
        test: Test score in [0, 1].
        policy: Folder of the policy.
        result: The whole inner result, with ``data``: what the splits held.
    """

    programs: tuple[str, ...]
    seed: int
    test: float
    policy: str
    result: dict[str, Any]

    @property
    def standard_error(self) -> float | None:
        """Of the test score, over the test examples."""
        return self.result.get("standard_error")

    @property
    def scores(self) -> dict[str, float]:
        """Accuracy by benchmark, in [0, 1]; empty where the examples name none."""
        return self.result.get("scores") or {}


def final_config(loop: OuterLoop, full: bool, inner: dict[str, Any] | None = None) -> InnerConfig:
    """Settings of one stage of the final training.

    DERL-base and the baselines train with the search's inner settings changed by ``final_inner``: more epochs, in the
    paper. A round of DERL-full takes what it took in the search (section 4.2), and of ``final_inner`` only how the
    policy is evaluated, so that all final policies are tested alike: on the whole test split, unless ``final_inner``
    says ``eval_examples``. ``max_flops_ratio`` caps the search's inner runs alone. A ``policy`` in ``final_inner`` or
    ``inner`` is what the training starts from (its first stage, with several programs).
    """
    settings = loop.settings
    changes = settings.final_inner
    if full:
        changes = {key: value for key, value in changes.items() if key.startswith("eval_") or key == "policy"}
    searched = settings.inner | {"eval_examples": None, "max_flops_ratio": None}
    return loop.task.inner.override(**layered(loop.task.inner, searched, changes, inner or {}))


def length_of(config: InnerConfig) -> tuple[float, str]:
    """How long a training is, and the unit: epochs or optimiser steps."""
    return (config.steps, "steps") if config.epochs is None else (config.epochs, "epochs")


def already_tested(ledger: Ledger, programs: Sequence[str], seeds: Sequence[int]) -> dict[int, Final]:
    """Those of the seeds for which a final policy of these programs was tested before: seed -> its first look."""
    found: dict[int, Final] = {}
    for row in ledger.finals():
        if row["programs"] == list(programs) and row["seed"] in seeds and not row["again"]:
            found[row["seed"]] = Final(tuple(programs), row["seed"], row["test"], row["policy"], row["result"])
    return found


def train_final(
    ledger: Ledger,
    programs: Sequence[str],
    seeds: Sequence[int],
    *,
    inner: dict[str, Any] | None = None,
    workers: int = 1,
    pool: PoolKind = "processes",
    again: bool = False,
) -> list[Final]:
    """Train fresh policies on the full training set and evaluate each once on the test split.

    With several programs (DERL-full) training goes through them in order, each stage from the checkpoint of the
    one before; only the last is tested. :func:`final_config` says how long a stage is. A DERL-full policy that is
    trained for longer than a baseline gets a warning: the paper's comparison would not be a fair one.

    Args:
        ledger: Where the results are recorded; its configuration says task and inner settings.
        programs: One per stage.
        seeds: One final policy each; one that was tested before is not trained again.
        inner: Overrides of the inner settings, on top of the search's and the task's for final training.
        workers: Policies trained at a time.
        pool: Where they are trained; see :class:`~derl_gym.envs.RewardDesignEnv`.
        again: Train all seeds, also those whose test score is known already.

    Returns:
        One final policy per seed, in their order; without ``again`` the earlier ones among them as they were recorded.

    Raises:
        TestAlreadyOpened: when the scores of all seeds are known and ``again`` is not set.
        InfrastructureFailure: when a training failed for good.
        FileNotFoundError: when the policy that a stage starts from is missing, or the test data are.
        RunDirectoryMismatch: when the data are no longer those of the search, or the base policy isn't.
        ValueError: when a program does not parse, or is undefined on a real rollout.
    """
    programs = list(programs)
    wanted = list(seeds)
    earlier = {} if again else already_tested(ledger, programs, wanted)
    seeds = [seed for seed in wanted if seed not in earlier]
    if wanted and not seeds:
        raise TestAlreadyOpened(
            f"the test split was opened before for {' -> '.join(programs)} with seed {', '.join(map(str, wanted))}: "
            "take other seeds (--first-seed N), or ask for a second look (--again), which is recorded as one"
        )
    loop = OuterLoop(settings_of(ledger.config), lambda: ledger.config["environment"])
    full = loop.settings.variant == "full"
    config = final_config(loop, full, inner)
    for final in earlier.values():
        _refuse_other_training(final, config)
    for program in programs:
        loop.parse(program)
    if full:
        _warn_if_longer(config, len(programs), final_config(loop, False, inner))
    # Also a look whether the test data are there, before the days that the training may take.
    data = {split: loop.record(split) for split in ("full", "test")}
    _refuse_other_data(ledger, loop)
    start = config.policy or loop.task.base_policy
    policy_folder(start)  # said before anything is trained, like the rest
    if start == loop.base_policy:
        _refuse_other_policy(ledger, start)
    starts = dict.fromkeys(seeds, start)
    folders = {seed: _final_folder(ledger, programs, seed) for seed in seeds}
    finals: list[Final] = []
    with open_pool(pool, workers, config.gpus) as runs:
        for stage, program in enumerate(programs):
            last = stage == len(programs) - 1
            for seed in seeds if stage else ():
                _check_checkpoint(starts[seed], stage)
            jobs = [
                Job(
                    id=f"final-{seed}-{stage}",
                    target="derl_gym.inner.train:run",
                    payload={
                        **loop.payload(program, starts[seed], seed if stage == 0 else trial_seed(seed, 0, stage)),
                        "config": dataclasses.asdict(config),
                        "data": loop.hashes("full", "test") if last else loop.hashes("full"),
                        "train_split": "full",
                        "eval_split": "test" if last else None,
                        "save_policy": True,
                    },
                    folder=folders[seed] / f"stage-{stage}",
                    timeout=config.timeout,
                    keeps_files=True,
                )
                for seed in seeds
            ]
            by_id = dict(zip((job.id for job in jobs), seeds, strict=True))
            with contextlib.closing(_trained(runs, jobs, program)) as results:
                for job, result in results:
                    seed = by_id[job.id]
                    starts[seed] = result["policy"]
                    if last:
                        result |= {"data": data, "config": dataclasses.asdict(config)}
                        ledger.record_final(
                            programs, seed, test=result["score"], policy=result["policy"], result=result
                        )
                        finals.append(Final(tuple(programs), seed, result["score"], result["policy"], result))
                    remove_checkpoints(job.folder)
    return sorted([*earlier.values(), *finals], key=lambda final: wanted.index(final.seed))


def _refuse_other_training(final: Final, config: InnerConfig) -> None:
    """Policies whose scores are averaged must be trained alike; ledgers of version 0.1 don't say how they were."""
    there, here = final.result.get("config", {}), dataclasses.asdict(config)
    names = [name for name in here if name in there and there[name] != here[name] and name not in CLOCKWORK]
    if names:
        differing = ", ".join(f"{name} {there[name]!r}, not {here[name]!r}" for name in names)
        raise ValueError(
            f"the final policy of seed {final.seed} was trained with other settings ({differing}): train with those, "
            "with other seeds alone (--first-seed N), or all anew (--again)"
        )


def _refuse_other_data(ledger: Ledger, loop: OuterLoop) -> None:
    """What ``train`` and ``validation`` hold must be what the search recorded; ledgers of version 0.1 don't say."""
    for split, recorded in ledger.config.get("data", {}).items():
        there, here = recorded["sha256"], loop.record(split)["sha256"]
        if there != here:
            raise RunDirectoryMismatch(
                f"the {split} data are not those of the search in {ledger.run_dir}: sha256 {there[:12]} there, "
                f"{here[:12]} now. Put them back, or search anew in another run directory"
            )


def _refuse_other_policy(ledger: Ledger, policy: str) -> None:
    there = ledger.config.get("base_policy")
    if there is not None and there != (here := policy_fingerprint(policy)):
        raise RunDirectoryMismatch(
            f"the base policy {policy} is not the one of the search in {ledger.run_dir}: {there} there, {here} now. "
            "Put it back, or name another one to start from with inner.policy"
        )


def _warn_if_longer(config: InnerConfig, rounds: int, baseline: InnerConfig) -> None:
    (each, unit), (allowed, other) = length_of(config), length_of(baseline)
    if unit == other and rounds * each > allowed:
        LOG.warning(
            "%d rounds of %g %s make %g, more than the %g of a baseline: for a fair comparison train the baselines for "
            "as long, with inner.%s=%g (or final_inner's)",
            *(rounds, each, unit, rounds * each, allowed, unit, rounds * each),
        )


def _check_checkpoint(policy: str, stage: int) -> None:
    if not (Path(policy) / "config.json").exists():
        raise FileNotFoundError(
            f"stage {stage + 1} of the final training goes on from the policy in {policy}, which is missing"
        )


def _final_folder(ledger: Ledger, programs: list[str], seed: int) -> Path:
    """A folder of its own for every final training, also for a second look with the same programs and seed."""
    earlier = sum(1 for row in ledger.finals() if row["programs"] == programs and row["seed"] == seed)
    name = fingerprint({"programs": programs, "seed": seed, "earlier": earlier})
    return ledger.run_dir / "finals" / name


def _trained(pool: Pool, jobs: Sequence[Job], program: str) -> Generator[tuple[Job, dict[str, Any]], None, None]:
    """Each job with its result as it ends, first those that had ended before the command did."""
    left = {job.id: job for job in jobs}
    for job in jobs:
        if (result := _ended_before(job)) is not None:
            del left[job.id]
            yield job, result
    with contextlib.closing(pool.run(left.values())) as ended:
        for outcome in ended:
            yield left[outcome.id], _checked(outcome, program)


def _ended_before(job: Job) -> dict[str, Any] | None:
    """The result of a stage that ended before the command did; ``None``: to be trained, and its folder says what for.

    A result of other settings is removed before that is written down, so that it cannot be taken for this one's.
    """
    file, note, made_for = job.folder / "result.json", job.folder / "training.txt", training_hash(job.payload)
    if note.exists() and note.read_text() == made_for and file.exists():
        result = json.loads(file.read_text())
        if result["status"] == "scored" and (Path(result["policy"]) / "config.json").exists():
            return result
    private_folder(job.folder)
    file.unlink(missing_ok=True)
    note.write_text(made_for)
    return None


def _checked(outcome: Outcome, program: str) -> dict[str, Any]:
    """The result of a final training that went well; the others raise."""
    if outcome.result is None:
        raise InfrastructureFailure(f"the final training with {program} failed: {outcome.failure}")
    if outcome.result["status"] != "scored":
        raise ValueError(f"{program} cannot train a final policy: {outcome.result['reason']}")
    return outcome.result


def analyse_on_test(ledger: Ledger, workers: int = 1, pool: PoolKind = "processes") -> dict[str, float]:
    """Test scores of the inner policies that a finished search has kept: the analysis of the paper's Figure 4.

    Written to ``test_analysis.json`` in the run directory, which no search reads. Needs ``keep_policies=True``. They
    are evaluated as final policies are: on the whole test split, unless ``final_inner`` says ``eval_examples``.

    Returns:
        Trial identity -> test score.

    Raises:
        ValueError: when the search kept no policies.
        RunDirectoryMismatch: when the data are no longer those of the search.
    """
    kept = {
        row["identity"]: row["result"]["policy"]
        for row in ledger.trials()
        if row["status"] == "scored" and Path(row["result"]["policy"] or os.devnull).is_dir()
    }
    if not kept:
        raise ValueError(f"{ledger.run_dir} holds no policies: search with keep_policies=True to analyse them on test")
    loop = OuterLoop(settings_of(ledger.config), lambda: ledger.config["environment"])
    _refuse_other_data(ledger, loop)
    config = dataclasses.asdict(final_config(loop, full=True))  # evaluated as final policies are
    seeds = {row["identity"]: row["seed"] for row in ledger.trials()}
    jobs = [
        Job(
            id=identity,
            target="derl_gym.inner.evaluate:run",
            payload={
                **loop.payload("g1", policy, seeds[identity]),
                "config": config,
                "split": "test",
                "data": loop.hashes("test"),
            },
            folder=ledger.run_dir / "test_analysis" / identity,
            timeout=loop.inner.timeout,
        )
        for identity, policy in kept.items()
    ]
    scores: dict[str, float] = {}
    with open_pool(pool, workers) as runs, contextlib.closing(runs.run(jobs)) as ended:
        for outcome in ended:
            if outcome.result is None:
                raise InfrastructureFailure(f"evaluating the policy of trial {outcome.id} failed: {outcome.failure}")
            scores[outcome.id] = outcome.result["score"]
    write_private(ledger.run_dir / TEST_ANALYSIS, json.dumps(scores, indent=1))
    return scores
