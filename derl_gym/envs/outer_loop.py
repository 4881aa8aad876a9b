"""What both environments share: programs in, validation scores out, everything in the ledger.

One :class:`OuterLoop` is one search in one run directory. It parses proposals, looks a trial up before it is
trained, hands the rest to the pool, and picks the policy that the next outer step starts from ("full"). It
knows no observation, no space and no agent. The reference run that caps FLOPs is reference.py's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from derl_gym.envs.halving import Halving
from derl_gym.envs.identity import fingerprint, policy_fingerprint, policy_folder, trial_seed
from derl_gym.envs.inner_runs import InfrastructureFailure, InnerRuns, Trial, trial_folder, what_next
from derl_gym.envs.measured import fitting_table, not_measured
from derl_gym.envs.reference import training_flops
from derl_gym.envs.settings import ADDED, MACHINE, Scored, Settings, layered
from derl_gym.inner.config import CLOCKWORK, InnerConfig
from derl_gym.programs import Analysis, Grammar, InvalidProgram, ProgramSpace, RewardProgram
from derl_gym.tasks import Split, load_task
from derl_gym.trials.ledger import Ledger

LOG = logging.getLogger("derl_gym")
SEARCHED: tuple[Split, ...] = ("train", "validation")
"""Splits that a search reads."""
GRPO_EPSILON = 1e-4
"""What TRL adds to a group's standard deviation (``GRPOTrainer``)."""


class OuterLoop:
    """One search: the state behind an environment.

    Attributes:
        task: The task, primitives flipped where asked.
        programs: The action space of one proposal.
        states: Float64 (S, k), the states that equivalence and audits are decided on.
        inner: The resolved settings of every inner run.
        capped: The same with ``max_flops`` in the place of ``max_flops_ratio``, as soon as the reference run has ended.
        final: The same of the final training of a baseline or of DERL-base; protocol.py makes it.
        episode: Number of the search within the run directory, from 0.
        step: Outer step within the episode, from 0.
        slot: Next slot within the outer step's group.
        on_scored: Called with every :class:`Scored` as it arrives.
        on_news: Called with a line of text when something else than a proposal is trained.
    """

    def __init__(self, settings: Settings, environment_id: Callable[[], str]) -> None:
        self.settings = settings
        self.environment_id = environment_id
        options = dict(settings.task_options)
        if settings.data_dir is not None:
            options["data_dir"] = settings.data_dir
        self.task_options = options
        self.task = load_task(settings.task, options, settings.flip)
        self.k = len(self.task.primitives)
        names = None if settings.primitives is None else tuple(settings.primitives)
        longest = settings.max_program_length or self.task.max_program_length
        self.grammar = Grammar(self.k, longest, names, settings.max_digits or 3)
        self.programs = ProgramSpace(self.grammar)
        self.states = self.task.states()
        self.inner = self.capped = self.task.inner.override(**settings.inner)
        self.final = self.task.inner.override(**layered(self.task.inner, settings.inner, settings.final_inner))
        if self.inner.policy:
            policy_folder(self.inner.policy)  # a wrong path is said now, before a run directory is made for it
        self.on_scored: Callable[[Scored], None] | None = None
        self.on_news: Callable[[str], None] | None = None
        self._records: dict[Split, dict[str, Any]] = {}
        self._common: tuple[InnerConfig, str, dict[str, Any]] | None = None
        self._ledger: Ledger | None = None
        self._closed = False
        self.table = None
        if settings.cache == "bundled":
            assert self.task.measured is not None
            common = self.common(self.inner, policy_fingerprint(self.base_policy))
            self.table = fitting_table(self.task.measured, common)
        self._runs = InnerRuns(settings, self.inner, self.table)
        self._warned = False
        self._run_dir: Path | None = None if settings.run_dir is None else Path(settings.run_dir).expanduser()
        self.episode = -1
        self._begun = -1
        self.seed = 0
        self._reference: Trial | None = None
        self._free_since = 0.0

    # -- the run directory ------------------------------------------------------------------------------

    @property
    def run_dir(self) -> Path:
        """Where the ledger lies: ``run_dir=``, or a new folder under ``runs/``, made when first needed."""
        if self._run_dir is None:
            stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
            self._run_dir = Path("runs") / (self.environment_id() or self.task.name) / f"{stamp}-{os.getpid()}"
        return self._run_dir

    @property
    def config(self) -> dict[str, Any]:
        """What must be equal for a run directory to be continued."""
        own = dataclasses.asdict(self.settings)
        for machine in MACHINE:
            del own[machine]
        for name, before in ADDED.items():  # at these values as in ledgers that do not know of it
            if own[name] == before:
                del own[name]
        own |= {
            "environment": self.environment_id(),
            "task_name": self.task.name,
            "task_version": self.task.version,
            "inner_config": dataclasses.asdict(self.inner),
            "base_policy": policy_fingerprint(self.base_policy),
            "data": {split: self.record(split) for split in SEARCHED},
        }
        return own

    def record(self, split: Split) -> dict[str, Any]:
        """What a split holds, as :meth:`derl_gym.tasks.Task.record` has it; read once."""
        if split not in self._records:
            self._records[split] = self.task.record(split)
        return self._records[split]

    def hashes(self, *splits: Split) -> dict[str, str]:
        """The content hashes of splits, which every machine that runs an inner run must find as well."""
        return {split: self.record(split)["sha256"] for split in splits}

    @property
    def ledger(self) -> Ledger:
        """The run directory's record, opened (and locked) when first needed."""
        if self._closed:
            raise ClosedEnvironmentError(
                f"the environment was closed; a new one with run_dir={str(self.run_dir)!r} goes on from its ledger"
            )
        if self._ledger is None:
            opened = time.monotonic()
            self._ledger = Ledger(self.run_dir, config=self.config, costly=self.table is None)
            self._free_since += time.monotonic() - opened  # reading the data is no work of the proposer's
        return self._ledger

    def close(self) -> None:
        """Kill what runs and let go of the run directory, for good."""
        self._closed = True
        self._runs.close()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    # -- an episode -------------------------------------------------------------------------------------

    def begin(self, seed: int) -> None:
        """Start the next episode. Nothing is written before its first program is scored."""
        if self._begun == self.episode:  # an episode that was never stepped is not counted
            self.episode += 1
        self.seed = seed
        self.step = self.slot = 0
        self.policy = ""
        self._classes: dict[str, int] = {}
        self._group: list[Scored] = []
        self._reference = None
        self.capped = self.inner
        self._free_since = time.monotonic()

    @property
    def done(self) -> bool:
        """Whether the episode's outer steps are used up."""
        return self.step >= self.settings.outer_steps

    def score(self, actions: np.ndarray) -> list[Scored]:
        """Score the next n programs of the current outer step.

        Args:
            actions: Token ids, int (n, L).

        Returns:
            n outcomes, in the order of the actions.

        Raises:
            InfrastructureFailure: when an inner run failed for good and the settings say ``"raise"``. What was
                scored is in the ledger; the same call again trains only what is missing.
            ReplayMismatch: when the ledger holds other programs at this place.
            NotMeasured: when ``on_miss="error"`` and a program is not in the table; the others' scores are kept.
            ValueError: when the reference run finds the outcome reward undefined.
        """
        try:
            return self._score(actions)
        finally:
            self._free_since = time.monotonic()

    def _score(self, actions: np.ndarray) -> list[Scored]:
        if self.settings.halving and len(actions) != self.settings.group_size:
            raise ValueError(
                f"halving compares the {self.settings.group_size} programs of an outer step, but {len(actions)} came: "
                f"step them together, with gym.make_vec(..., num_envs={self.settings.group_size})"
            )
        ledger = self.ledger
        thought = time.monotonic() - self._free_since
        if self._begun != self.episode:
            ledger.begin_episode(self.episode, self.seed)
            self._begun = self.episode
            self.policy = policy_fingerprint(self.base_policy)
        texts = [self.programs.decode(row) for row in actions]
        recorded = ledger.propose(self.episode, self.step, actions, texts, first_slot=self.slot, seconds=thought)
        if self.inner.max_flops_ratio is not None and self._reference is None:
            self._measure_reference()
        classes = dict(self._classes)
        proposals = [self._look(text, classes) for text in texts]
        outcomes: list[Scored | None] = [None] * len(texts)
        waiting: dict[str, list[int]] = {}
        halving = None
        if self.settings.halving:
            halving = Halving(
                ledger,
                self._runs,
                self.settings.halving,
                lambda trial: self.payload(trial.program, self._policy_folder(), trial.seed),
            )
        with ledger.together():  # one commit for all that is known already
            for i, proposal in enumerate(proposals):
                if proposal.trial is None:
                    outcomes[i] = self._settle(i, proposal, None)
                elif halving is not None and halving.competes(proposal.trial):
                    if recorded[i]["identity"] not in halving.family(proposal.trial):
                        ledger.check_settled(recorded[i], proposal.trial.identity, dataclasses.asdict(proposal.trial))
                    waiting.setdefault(proposal.trial.identity, []).append(i)
                elif (row := self._runs.known(ledger, proposal.trial)) is not None:
                    cached = recorded[i]["cached"] if recorded[i]["status"] != "proposed" else True
                    outcomes[i] = self._settle(i, proposal, row, cached)
                else:
                    ledger.check_settled(recorded[i], proposal.trial.identity, dataclasses.asdict(proposal.trial))
                    waiting.setdefault(proposal.trial.identity, []).append(i)
        if waiting and self.settings.on_miss == "error":
            assert self.table is not None
            raise not_measured(self.table, [proposals[places[0]].text for places in waiting.values()])
        asked, failed = len(waiting), []
        raises = self.settings.on_infrastructure_failure == "raise"
        if halving is not None:
            failed += self._halve(halving, proposals, waiting, outcomes, recorded)
        if not (failed and raises):
            failed += self._train(proposals, waiting, outcomes, halving)
        if failed and raises:
            raise InfrastructureFailure(
                f"{len(failed)} of {asked} inner runs failed for good: {failed[0]['program']}: "
                f"{failed[0]['reason']}. What was scored is kept in {self.run_dir}; "
                + what_next([row["reason"] for row in failed], self.run_dir, "trains only the rest")
            )
        if halving is not None:
            halving.remove_checkpoints([proposal.trial for proposal in proposals if proposal.trial is not None])
        self._classes = classes
        scored = [outcome for outcome in outcomes if outcome is not None]
        self._group += scored
        self.slot += len(scored)
        if self.slot >= self.settings.group_size:
            self._end_outer_step()
        return scored

    # -- inside a step ----------------------------------------------------------------------------------

    def _look(self, text: str, classes: dict[str, int]) -> _Proposal:
        """Parse, judge and place one proposal; counts its class in ``classes``."""
        try:
            program = self.parse(text)
        except InvalidProgram as error:
            return _Proposal(text, None, str(error))
        analysis = program.analyse(self.task.primitives, states=self.states)
        key = self.class_of(program, analysis)
        seen = classes.get(key, 0)
        classes[key] = seen + 1
        replicate = seen if self.settings.cache == "off" else 0
        seed = trial_seed(self.seed, replicate, self.step if self.settings.variant == "full" else 0)
        if self.table is not None:
            seed = self.table.seeds[seed % len(self.table.seeds)]
        trained_as = self._trained_as(program, key)
        trial = Trial(self._identity(trained_as, seed, self.policy), program.text, key, seed, replicate, self.policy)
        return _Proposal(text, program, "", analysis.structure, key, trial, repeated=seen > 0)

    def _measure_reference(self) -> None:
        """Look the reference run up, or train it, and cap the others; in DERL-full once, from the base policy."""
        program = RewardProgram.parse("-g1" if "g1" in self.settings.flip else "g1", k=self.k)
        key = self.class_of(program, program.analyse(self.task.primitives, states=self.states))
        seed, config, ratio = trial_seed(self.seed, 0), self._uncapped, self.inner.max_flops_ratio
        assert ratio is not None
        identity = self._identity_with(config, self._trained_as(program, key), seed, self.policy)
        trial = Trial(identity, program.text, key, seed, 0, self.policy)

        def payload() -> dict[str, Any]:
            given = self.payload(program.text, self._policy_folder(), seed, config)
            return given | {"primitives": None}  # the outcome counts, also where programs may not use it

        def announce() -> None:
            if self.on_news is not None:
                self.on_news(f"reference run with {program.text}: {ratio:g} x its FLOPs cap the other inner runs")

        self.ledger.set_reference(self.episode, identity)
        flops = ratio * training_flops(self._runs, self.ledger, trial, payload, announce)
        cap = flops if self.inner.max_flops is None else min(flops, self.inner.max_flops)
        self.capped = dataclasses.replace(config, max_flops=cap)
        self._reference = trial

    def _trained_as(self, program: RewardProgram, key: str) -> str:
        return key if self.settings.cache in ("equivalent", "bundled") else program.text

    def class_of(self, program: RewardProgram, analysis: Analysis) -> str:
        """The programs that count as one with this one: those with equal GRPO advantages, as far as that holds."""
        if self.settings.cache in ("equivalent", "bundled") and not self._standardised(program.text, analysis):
            return f"exact:{program.text}"
        return program.equivalence_key(self.states)

    def _standardised(self, program: str, analysis: Analysis) -> bool:
        """Whether (r - mean) / (std + eps) hides the reward's scale for this program."""
        if self.inner.scale_rewards != "group" or self.inner.algorithm != "grpo":
            return False
        if analysis.constant or not 0 < analysis.smallest_gap < np.inf:
            return True
        group = self.inner.num_generations
        smallest_std = analysis.smallest_gap * np.sqrt(group - 1) / group
        if smallest_std < 100 * GRPO_EPSILON:
            level, self._warned = (logging.DEBUG if self._warned else logging.WARNING), True
            LOG.log(
                level,
                "the values of %s lie %.2g apart, so that GRPO's epsilon (%g) damps it: it is trained by itself, not "
                "as a member of its equivalence class (said once a search)",
                program,
                analysis.smallest_gap,
                GRPO_EPSILON,
            )
            return False
        return analysis.largest < 1e5 * analysis.smallest_gap

    def _identity(self, trained_as: str, seed: int, policy: str) -> str:
        """Equal for equal inner runs. A program that is the reference run's, with its seed and policy, is that run."""
        if self._reference is not None:
            uncapped = self._identity_with(self._uncapped, trained_as, seed, policy)
            if self._reference.identity == uncapped:
                return uncapped
        return self._identity_with(self.capped, trained_as, seed, policy)

    @property
    def _uncapped(self) -> InnerConfig:
        return dataclasses.replace(self.inner, max_flops=None, max_flops_ratio=None)

    def _identity_with(self, config: InnerConfig, trained_as: str, seed: int, policy: str) -> str:
        return fingerprint(self.common(config, policy) | {"program": trained_as, "seed": seed})

    def common(self, config: InnerConfig, policy: str) -> dict[str, Any]:
        """What makes two trials the same besides program and seed; JSON-able."""
        if self._common is not None and self._common[0] is config and self._common[1] == policy:
            return self._common[2]
        inner = dataclasses.asdict(config)
        for unseen in (*CLOCKWORK, "policy"):
            del inner[unseen]
        task = [self.settings.task, self.task.version, self.settings.task_options, sorted(self.settings.flip)]
        common = {"task": task, "data": self.hashes(*SEARCHED), "inner": inner, "policy": policy}
        self._common = (config, policy, common)
        return common

    def _halve(
        self,
        halving: Halving,
        proposals: list[_Proposal],
        waiting: dict[str, list[int]],
        outcomes: list[Scored | None],
        recorded: list[dict[str, Any]],
    ) -> list[dict[str, Any]]:
        """Send what is waiting from rung to rung; what is to be trained to its end stays. Returns failed rows."""
        trials = [trial for places in waiting.values() if (trial := proposals[places[0]].trial) is not None]
        settled = {
            identity: recorded[places[0]]["identity"]
            for identity, places in waiting.items()
            if recorded[places[0]]["status"] in ("scored", "invalid")
        }
        earlier = {
            row["identity"]
            for row in self.ledger.proposals()
            if (row["episode"], row["step"]) < (self.episode, self.step) and row["status"] in ("scored", "invalid")
        }
        failed: list[dict[str, Any]] = []

        def settle(identity: str, trial: Trial, row: dict[str, Any], cached: bool) -> None:
            for n, i in enumerate(waiting.pop(identity)):
                outcomes[i] = self._settle(i, dataclasses.replace(proposals[i], trial=trial), row, cached or n > 0)

        raises = self.settings.on_infrastructure_failure == "raise"
        with contextlib.closing(halving.run(trials, settled, raises)) as ended:
            for one in ended:
                if one.row["status"] == "failed":
                    failed.append(one.row)
                settle(one.identity, one.trial, one.row, one.fetched or bool(earlier & one.family))
        if failed and raises:
            return failed
        for trial in trials:
            if trial.identity in waiting and (row := self._runs.known(self.ledger, trial)) is not None:
                settle(trial.identity, trial, row, row["seconds"] == 0.0 or trial.identity in earlier)
        return failed

    def _train(
        self,
        proposals: list[_Proposal],
        waiting: dict[str, list[int]],
        outcomes: list[Scored | None],
        halving: Halving | None = None,
    ) -> list[dict[str, Any]]:
        """Train what is waiting; fill in the outcomes as they end. Returns the rows of failed runs."""
        trials: dict[str, Trial] = {}
        for identity, places in waiting.items():
            trial = proposals[places[0]].trial
            assert trial is not None
            trials[identity] = trial
        payloads = {
            identity: self.payload(trial.program, self._policy_folder(), trial.seed)
            if halving is None
            else halving.to_the_end(trial)
            for identity, trial in trials.items()
        }
        failed: list[dict[str, Any]] = []
        with contextlib.closing(self._runs.train(self.ledger, trials, payloads)) as rows:
            for row in rows:
                if row["status"] == "failed":
                    failed.append(row)
                for n, i in enumerate(waiting[row["identity"]]):
                    outcomes[i] = self._settle(i, proposals[i], row, cached=n > 0)
        return failed

    def payload(self, program: str, policy: str, seed: int, config: InnerConfig | None = None) -> dict[str, Any]:
        """What :func:`derl_gym.inner.train.run` is given for a search's inner run; ``config``: capped by default."""
        return {
            "task": self.settings.task,
            "task_options": self.task_options,
            "flip": list(self.settings.flip),
            "program": program,
            "primitives": None if self.settings.primitives is None else list(self.settings.primitives),
            "policy": policy,
            "config": dataclasses.asdict(config or self.capped),
            "data": self.hashes(*SEARCHED),
            "seed": seed,
            "train_split": "train",
            "eval_split": "validation",
            "save_policy": self.settings.keep_policies or self.settings.variant == "full",
        }

    def parse(self, text: str) -> RewardProgram:
        """A program over the primitives that this search allows.

        Raises:
            InvalidProgram: says what and where.
        """
        return RewardProgram.parse(text, k=self.k, primitives=self.settings.primitives)

    def _settle(self, i: int, proposal: _Proposal, row: dict[str, Any] | None, cached: bool = False) -> Scored:
        """Write the outcome of the i-th of these proposals into the ledger, and say it.

        Args:
            i: Its place among the programs of this call.
            proposal: The proposal.
            row: Its trial's row; ``None`` where the program does not parse.
            cached: Whether no inner run was made for it.
        """
        status = "invalid" if row is None else row["status"]
        score = 0.0 if row is None or row["score"] is None else float(row["score"])
        trial = proposal.trial
        scored = Scored(
            program=proposal.text,
            status=status,
            score=score,
            reason=proposal.reason if row is None else row["reason"],
            structure=proposal.structure,
            key=proposal.key,
            trial="" if trial is None else trial.identity,
            seed=-1 if trial is None else trial.seed,
            repeated=proposal.repeated,
            tokens=int((row or {}).get("tokens") or 0),
            flops=float((row or {}).get("flops") or 0.0),
            stopped=bool(((row or {}).get("result") or {}).get("of_steps")),
        )
        self.ledger.settle(
            self.episode,
            self.step,
            self.slot + i,
            identity=None if trial is None else trial.identity,
            status=status,
            score=None if status == "failed" else score,
            reason=scored.reason,
            cached=cached,
            seconds=0.0 if row is None or cached else row["seconds"] or 0.0,
        )
        if self.on_scored is not None:
            self.on_scored(scored)
        return scored

    def _end_outer_step(self) -> None:
        """In DERL-full the best policy of the group starts the next outer step; the others are thrown away."""
        if self.settings.variant == "full":
            scored = [outcome for outcome in self._group if outcome.status == "scored" and not outcome.stopped]
            best = max(scored, key=lambda outcome: outcome.score) if scored else None
            if best is not None:
                self.policy = f"trial:{best.trial}"
                self._policy_folder()
            if not self.settings.keep_policies:
                losers = {outcome.trial for outcome in scored}
                if self._reference is not None and self.step == 0:
                    losers.add(self._reference.identity)
                for trial in losers - {best.trial if best is not None else ""}:
                    shutil.rmtree(trial_folder(self.run_dir, trial) / "policy", ignore_errors=True)
        self._group = []
        self.slot = 0
        self.step += 1

    # -- what the loop stands on ------------------------------------------------------------------------

    @property
    def base_policy(self) -> str:
        """Hub name or folder of the model that the first outer step starts from."""
        return self.inner.policy or self.task.base_policy

    def _policy_folder(self) -> str:
        """Where the model lies that this outer step starts from.

        Raises:
            FileNotFoundError: when DERL-full's checkpoint is gone; never a silent return to the base policy.
        """
        if not self.policy.startswith("trial:"):
            return self.base_policy
        folder = trial_folder(self.run_dir, self.policy.removeprefix("trial:")) / "policy"
        if not (folder / "config.json").exists():
            raise FileNotFoundError(
                f"outer step {self.step + 1} of variant 'full' starts from the policy in {folder}, which is missing"
            )
        return str(folder.absolute())


@dataclasses.dataclass
class _Proposal:
    """One program on its way through :meth:`OuterLoop.score`."""

    text: str
    program: RewardProgram | None
    reason: str
    structure: str = "invalid"
    key: str = ""
    trial: Trial | None = None
    repeated: bool = False
