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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from derl_gym.envs.identity import fingerprint, policy_fingerprint, trial_seed
from derl_gym.inner.result import InnerResult
from derl_gym.programs import Analysis, Grammar, InvalidProgram, ProgramSpace, RewardProgram
from derl_gym.tasks import load_task
from derl_gym.trials.cache import SharedCache
from derl_gym.trials.devices import visible_devices
from derl_gym.trials.ledger import Ledger
from derl_gym.trials.pool import Job, LocalPool, Outcome

Variant = Literal["base", "full"]
CacheMode = Literal["equivalent", "exact", "off"]
LOG = logging.getLogger("derl_gym")
GRPO_EPSILON = 1e-4
"""What TRL adds to a group's standard deviation (``GRPOTrainer``)."""


class InfrastructureFailure(RuntimeError):
    """An inner run failed for good (killed, out of memory, timed out): our fault, not the program's."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keyword arguments of every environment id; all JSON-able. See :class:`RewardDesignEnv`."""

    task: str
    task_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    variant: Variant = "base"
    outer_steps: int = 10
    group_size: int = 8
    inner: dict[str, Any] = dataclasses.field(default_factory=dict)
    primitives: Sequence[str] | None = None
    flip: Sequence[str] = ()
    mask: Literal["grammar", "charset"] = "grammar"
    pool: Literal["processes"] = "processes"
    workers: int = 1
    run_dir: str | None = None
    cache: CacheMode = "equivalent"
    cache_dir: str | None = None
    data_dir: str | None = None
    keep_policies: bool = False
    on_infrastructure_failure: Literal["raise", "zero"] = "raise"

    def __post_init__(self) -> None:
        for name in ("outer_steps", "group_size", "workers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        for name, choices in (
            ("variant", ("base", "full")),
            ("mask", ("grammar", "charset")),
            ("cache", ("equivalent", "exact", "off")),
            ("on_infrastructure_failure", ("raise", "zero")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if self.pool != "processes":
            raise ValueError(f"pool must be 'processes', not {self.pool!r} (a Ray pool isn't part of this version)")
        if self.cache_dir is not None and self.variant == "full":
            raise ValueError("cache_dir shares scores, not policies; variant='full' needs the policies")


@dataclasses.dataclass(frozen=True)
class Scored:
    """One proposal's outcome, as the environments' infos show it.

    Attributes:
        program: The program's text.
        status: ``"scored"``, ``"invalid"`` or ``"failed"``.
        score: Validation score in [0, 1]; 0.0 unless scored.
        reason: Why not scored, or which cap ended the training; else empty.
        structure: ``"stable"``, ``"unstable"`` or ``"invalid"`` (paper section 5.4).
        key: The program's equivalence class; empty where it does not parse.
        trial: Identity of the trial in the ledger; empty where it does not parse.
        seed: The inner run's seed; -1 where there is no trial.
        repeated: Whether this episode had proposed the class before.
        tokens: Tokens of the inner run's training.
        flops: Its estimated floating point operations.
    """

    program: str
    status: str
    score: float
    reason: str = ""
    structure: str = "invalid"
    key: str = ""
    trial: str = ""
    seed: int = -1
    repeated: bool = False
    tokens: int = 0
    flops: float = 0.0

    def info(self) -> dict[str, Any]:
        """All but the score, which is the environment's reward."""
        info = dataclasses.asdict(self)
        del info["score"]
        return info


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
        self.on_scored: Callable[[Scored], None] | None = None
        self._ledger: Ledger | None = None
        self._pool: LocalPool | None = None
        self._shared: SharedCache | None = None
        self._run_dir: Path | None = None if settings.run_dir is None else Path(settings.run_dir).expanduser()
        self._base_policy = ""
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
        for machine in ("run_dir", "workers", "pool", "cache_dir", "on_infrastructure_failure"):
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
        if self._ledger is None:
            self._ledger = Ledger(self.run_dir, config=self.config)
        return self._ledger

    def close(self) -> None:
        """Kill what runs and let go of the run directory."""
        if self._pool is not None:
            self._pool.close()
        if self._ledger is not None:
            self._ledger.close()
        self._pool = self._ledger = None

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
        proposals = [self._look(text) for text in texts]
        classes = dict(self._classes)
        outcomes: list[Scored | None] = [None] * len(texts)
        waiting: dict[str, list[int]] = {}
        jobs: dict[str, Job] = {}
        for i, proposal in enumerate(proposals):
            if proposal.program is None:
                outcomes[i] = self._settle(i, proposal, "invalid", 0.0, proposal.reason)
                continue
            seen = classes.get(proposal.key, 0)
            classes[proposal.key] = seen + 1
            proposal.repeated = seen > 0
            proposal.replicate = seen if self.settings.cache == "off" else 0
            proposal.seed = trial_seed(self.seed, proposal.replicate)
            proposal.trial = self._identity(proposal)
            known = self._known(proposal)
            if known is not None:
                cached = recorded[i]["cached"] if recorded[i]["status"] != "proposed" else True
                outcomes[i] = self._settle(i, proposal, known["status"], known["score"], known["reason"], known, cached)
                continue
            waiting.setdefault(proposal.trial, []).append(i)
            if proposal.trial not in jobs:
                jobs[proposal.trial] = self._job(proposal)
        failures = self._train(jobs, proposals, waiting, outcomes)
        if failures and self.settings.on_infrastructure_failure == "raise":
            raise InfrastructureFailure(
                f"{len(failures)} of {len(jobs)} inner runs failed for good: {failures[0]}. What was scored is kept "
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

    def _look(self, text: str) -> _Proposal:
        try:
            program = self.parse(text)
        except InvalidProgram as error:
            return _Proposal(text, None, str(error))
        analysis = program.analyse(self.task.primitives, states=self.states)
        key = program.equivalence_key(self.states)
        if self.settings.cache == "equivalent" and not self._standardised(text, analysis):
            key = f"exact:{program.text}"
        return _Proposal(text, program, "", analysis.structure, key)

    def _standardised(self, program: str, analysis: Analysis) -> bool:
        """Whether (r - mean) / (std + eps) hides the reward's scale for this program."""
        if self.inner.scale_rewards != "group":
            return False
        if analysis.constant or not 0 < analysis.smallest_gap < np.inf:
            return True
        group = self.inner.num_generations
        smallest_std = analysis.smallest_gap * np.sqrt(group - 1) / group
        if smallest_std < 100 * GRPO_EPSILON:
            LOG.warning(
                "the values of %s lie %.2g apart, so that GRPO's epsilon (%g) damps it: it is trained by itself, not "
                "as a member of its equivalence class",
                program,
                analysis.smallest_gap,
                GRPO_EPSILON,
            )
            return False
        return max(map(abs, analysis.bounds)) < 1e5 * analysis.smallest_gap

    def _identity(self, proposal: _Proposal) -> str:
        assert proposal.program is not None
        by_class = self.settings.cache == "equivalent"
        inner = dataclasses.asdict(self.inner)
        for unseen in ("timeout", "policy"):
            del inner[unseen]
        return fingerprint(
            {
                "task": [
                    self.settings.task,
                    self.task.version,
                    self.settings.task_options,
                    sorted(self.settings.flip),
                ],
                "program": proposal.key if by_class else proposal.program.text,
                "seed": proposal.seed,
                "inner": inner,
                "policy": self.policy,
            }
        )

    def _known(self, proposal: _Proposal) -> dict[str, Any] | None:
        """The ended trial in the ledger, fetched from the shared cache if it is only there."""
        row = self.ledger.trial(proposal.trial)
        if row is None and self._shared_cache is not None and (result := self._shared_cache.get(proposal.trial)):
            self._start(proposal)
            self._finish(proposal.trial, result, seconds=0.0)
            row = self.ledger.trial(proposal.trial)
        return row if row is not None and row["status"] in ("scored", "invalid") else None

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

    def _job(self, proposal: _Proposal) -> Job:
        assert proposal.program is not None
        return Job(
            id=proposal.trial,
            target="derl_gym.inner.train:run",
            payload=self.payload(proposal.program.text, self._policy_folder(), proposal.seed),
            folder=self.run_dir / "trials" / proposal.trial,
            timeout=self.inner.timeout,
        )

    def _train(
        self,
        jobs: dict[str, Job],
        proposals: list[_Proposal],
        waiting: dict[str, list[int]],
        outcomes: list[Scored | None],
    ) -> list[str]:
        """Run the jobs; fill in the outcomes as they end. Returns the reasons of failed runs."""
        failures: list[str] = []
        if not jobs:
            return failures

        def started(job: Job, pid: int, attempt: int) -> None:
            self._start(proposals[waiting[job.id][0]], pid, attempt)

        with contextlib.closing(self.pool.run(jobs.values(), on_start=started)) as ended:
            for outcome in ended:
                row = self._record(outcome, proposals[waiting[outcome.id][0]])
                if row["status"] == "failed":
                    failures.append(f"{proposals[waiting[outcome.id][0]].text}: {row['reason']}")
                for n, i in enumerate(waiting[outcome.id]):
                    score = row["score"] if row["status"] != "failed" else 0.0
                    outcomes[i] = self._settle(i, proposals[i], row["status"], score, row["reason"], row, cached=n > 0)
        return failures

    def _start(self, proposal: _Proposal, pid: int | None = None, attempt: int = 1) -> None:
        assert proposal.program is not None
        self.ledger.start_trial(
            proposal.trial,
            program=proposal.program.text,
            key=proposal.key,
            seed=proposal.seed,
            replicate=proposal.replicate,
            policy=self.policy,
            attempts=attempt,
            pid=pid,
        )

    def _record(self, outcome: Outcome, proposal: _Proposal) -> dict[str, Any]:
        result = outcome.result
        if result is None:
            result = InnerResult("failed", None, outcome.failure or "unknown failure").to_dict()
            if self.ledger.trial(outcome.id) is None:  # it never came as far as a process
                self._start(proposal)
        self._finish(outcome.id, result, outcome.seconds, outcome.attempts)
        if self._shared_cache is not None and result["status"] != "failed":
            self._shared_cache.put(outcome.id, result)
        row = self.ledger.trial(outcome.id)
        assert row is not None
        return row

    def _finish(self, trial: str, result: dict[str, Any], seconds: float, attempts: int | None = None) -> None:
        self.ledger.finish_trial(
            trial,
            status=result["status"],
            score=result["score"],
            reason=result["reason"],
            result=result,
            attempts=attempts,
            seconds=seconds,
            tokens=result["tokens"],
            flops=result["flops"],
        )

    def _settle(
        self,
        i: int,
        proposal: _Proposal,
        status: str,
        score: float,
        reason: str,
        trial: dict[str, Any] | None = None,
        cached: bool = False,
    ) -> Scored:
        """Write the outcome of the i-th of these proposals into the ledger, and say it."""
        scored = Scored(
            program=proposal.text,
            status=status,
            score=float(score),
            reason=reason,
            structure=proposal.structure,
            key=proposal.key,
            trial=proposal.trial,
            seed=proposal.seed,
            repeated=proposal.repeated,
            tokens=int(trial["tokens"] or 0) if trial else 0,
            flops=float(trial["flops"] or 0.0) if trial else 0.0,
        )
        self.ledger.settle(
            self.episode,
            self.step,
            self.slot + i,
            identity=proposal.trial or None,
            status=status,
            score=None if status == "failed" else scored.score,
            reason=reason,
            cached=cached,
            seconds=trial["seconds"] or 0.0 if trial and not cached else 0.0,
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
                        shutil.rmtree(self.run_dir / "trials" / outcome.trial / "policy", ignore_errors=True)
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
        folder = self.run_dir / "trials" / self.policy.removeprefix("trial:") / "policy"
        if not (folder / "config.json").exists():
            raise FileNotFoundError(
                f"outer step {self.step + 1} of variant 'full' starts from the policy in {folder}, which is missing"
            )
        return str(folder.absolute())

    @property
    def pool(self) -> LocalPool:
        """Where inner runs go."""
        if self._pool is None:
            devices = visible_devices()
            # More workers than GPUs share them; as many or fewer lease one each.
            lease = devices if len(devices) >= self.settings.workers else None
            self._pool = LocalPool(workers=self.settings.workers, devices=lease)
        return self._pool

    @property
    def _shared_cache(self) -> SharedCache | None:
        if self._shared is None and self.settings.cache_dir is not None:
            self._shared = SharedCache(Path(self.settings.cache_dir).expanduser() / "trials.sqlite")
        return self._shared


@dataclasses.dataclass
class _Proposal:
    """One program on its way through :meth:`OuterLoop.score`."""

    text: str
    program: RewardProgram | None
    reason: str
    structure: str = "invalid"
    key: str = ""
    trial: str = ""
    seed: int = -1
    replicate: int = 0
    repeated: bool = False
