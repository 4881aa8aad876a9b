"""What both environments share: programs in, validation scores out, everything in the ledger.

One :class:`OuterLoop` is one search in one run directory. It parses proposals, looks a trial up before it is
trained, hands the rest to the pool, and picks the policy that the next outer step starts from ("full"). It
knows no observation, no space and no agent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from derl_gym.envs.identity import fingerprint, policy_fingerprint, policy_folder, trial_seed
from derl_gym.envs.inner_runs import InnerRuns, Trial, trial_folder
from derl_gym.envs.settings import MACHINE, Scored, Settings
from derl_gym.programs import Analysis, Grammar, InvalidProgram, ProgramSpace, RewardProgram
from derl_gym.tasks import load_task
from derl_gym.trials.ledger import Ledger

LOG = logging.getLogger("derl_gym")
GRPO_EPSILON = 1e-4
"""What TRL adds to a group's standard deviation (``GRPOTrainer``)."""


class InfrastructureFailure(RuntimeError):
    """An inner run failed for good (killed, out of memory, timed out): our fault, not the program's."""


class OuterLoop:
    """One search: the state behind an environment.

    Attributes:
        task: The task, primitives flipped where asked.
        programs: The action space of one proposal.
        states: Float64 (S, k), the states that equivalence and audits are decided on.
        inner: The resolved settings of every inner run.
        episode: Number of the search within the run directory, from 0.
        step: Outer step within the episode, from 0.
        slot: Next slot within the outer step's group.
        on_scored: Called with every :class:`Scored` as it arrives.
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
        self.grammar = Grammar(k=self.k, max_length=self.task.max_program_length, primitives=names)
        self.programs = ProgramSpace(self.grammar)
        self.states = self.task.states()
        self.inner = self.task.inner.override(**settings.inner)
        if self.inner.policy:
            policy_folder(self.inner.policy)  # a wrong path is said now, before a run directory is made for it
        self.on_scored: Callable[[Scored], None] | None = None
        self._ledger: Ledger | None = None
        self._closed = False
        self._runs = InnerRuns(settings, self.inner.timeout)
        self._warned = False
        self._run_dir: Path | None = None if settings.run_dir is None else Path(settings.run_dir).expanduser()
        self.episode = -1
        self._begun = -1
        self.seed = 0

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
        own |= {
            "environment": self.environment_id(),
            "task_name": self.task.name,
            "task_version": self.task.version,
            "inner_config": dataclasses.asdict(self.inner),
        }
        return own

    @property
    def ledger(self) -> Ledger:
        """The run directory's record, opened (and locked) when first needed."""
        if self._closed:
            raise ClosedEnvironmentError(
                f"the environment was closed; a new one with run_dir={str(self.run_dir)!r} goes on from its ledger"
            )
        if self._ledger is None:
            self._ledger = Ledger(self.run_dir, config=self.config)
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
        """
        if self._begun != self.episode:
            self.ledger.begin_episode(self.episode, self.seed)
            self._begun = self.episode
            self.policy = policy_fingerprint(self.base_policy)
        texts = [self.programs.decode(row) for row in actions]
        recorded = self.ledger.propose(self.episode, self.step, actions, texts, first_slot=self.slot)
        classes = dict(self._classes)
        proposals = [self._look(text, classes) for text in texts]
        outcomes: list[Scored | None] = [None] * len(texts)
        waiting: dict[str, list[int]] = {}
        for i, proposal in enumerate(proposals):
            if proposal.trial is None:
                outcomes[i] = self._settle(i, proposal, None)
            elif (row := self._runs.known(self.ledger, proposal.trial)) is not None:
                cached = recorded[i]["cached"] if recorded[i]["status"] != "proposed" else True
                outcomes[i] = self._settle(i, proposal, row, cached)
            else:
                waiting.setdefault(proposal.trial.identity, []).append(i)
        failures = self._train(proposals, waiting, outcomes)
        if failures and self.settings.on_infrastructure_failure == "raise":
            raise InfrastructureFailure(
                f"{len(failures)} of {len(waiting)} inner runs failed for good: {failures[0]}. What was scored is kept "
                f"in {self.run_dir}; the same step again, or `derl-gym resume {self.run_dir}`, trains only the rest."
            )
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
        trained_as = key if self.settings.cache == "equivalent" else program.text
        trial = Trial(self._identity(trained_as, seed), program.text, key, seed, replicate, self.policy)
        return _Proposal(text, program, "", analysis.structure, key, trial, repeated=seen > 0)

    def class_of(self, program: RewardProgram, analysis: Analysis) -> str:
        """The programs that count as one with this one: those with equal GRPO advantages, as far as that holds."""
        if self.settings.cache == "equivalent" and not self._standardised(program.text, analysis):
            return f"exact:{program.text}"
        return program.equivalence_key(self.states)

    def _standardised(self, program: str, analysis: Analysis) -> bool:
        """Whether (r - mean) / (std + eps) hides the reward's scale for this program."""
        if self.inner.scale_rewards != "group":
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
        return max(map(abs, analysis.bounds)) < 1e5 * analysis.smallest_gap

    def _identity(self, trained_as: str, seed: int) -> str:
        inner = dataclasses.asdict(self.inner)
        for unseen in ("timeout", "policy"):
            del inner[unseen]
        task = [self.settings.task, self.task.version, self.settings.task_options, sorted(self.settings.flip)]
        return fingerprint({"task": task, "program": trained_as, "seed": seed, "inner": inner, "policy": self.policy})

    def _train(
        self, proposals: list[_Proposal], waiting: dict[str, list[int]], outcomes: list[Scored | None]
    ) -> list[str]:
        """Train what is waiting; fill in the outcomes as they end. Returns the reasons of failed runs."""
        trials: dict[str, Trial] = {}
        for identity, places in waiting.items():
            trial = proposals[places[0]].trial
            assert trial is not None
            trials[identity] = trial
        payloads = {
            identity: self.payload(trial.program, self._policy_folder(), trial.seed)
            for identity, trial in trials.items()
        }
        failures: list[str] = []
        with contextlib.closing(self._runs.train(self.ledger, trials, payloads)) as rows:
            for row in rows:
                if row["status"] == "failed":
                    failures.append(f"{row['program']}: {row['reason']}")
                for n, i in enumerate(waiting[row["identity"]]):
                    outcomes[i] = self._settle(i, proposals[i], row, cached=n > 0)
        return failures

    def payload(self, program: str, policy: str, seed: int) -> dict[str, Any]:
        """What :func:`derl_gym.inner.train.run` is given for a search's inner run."""
        return {
            "task": self.settings.task,
            "task_options": self.task_options,
            "flip": list(self.settings.flip),
            "program": program,
            "primitives": None if self.settings.primitives is None else list(self.settings.primitives),
            "policy": policy,
            "config": dataclasses.asdict(self.inner),
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
            scored = [outcome for outcome in self._group if outcome.status == "scored"]
            best = max(scored, key=lambda outcome: outcome.score) if scored else None
            if best is not None:
                self.policy = f"trial:{best.trial}"
                self._policy_folder()
            if not self.settings.keep_policies:
                for outcome in scored:
                    if best is not None and outcome.trial != best.trial:
                        shutil.rmtree(trial_folder(self.run_dir, outcome.trial) / "policy", ignore_errors=True)
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
