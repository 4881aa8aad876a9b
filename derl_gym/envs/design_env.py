"""The environment: one reward program per step. Its class docstring is the manual."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from derl_gym.envs.outer_loop import OuterLoop
from derl_gym.envs.public_face import PublicFace, describe
from derl_gym.envs.settings import Scored, make_settings


class RewardDesignEnv(PublicFace, gym.Env[dict[str, np.ndarray], np.ndarray]):
    """Design a reward program; an inner policy is trained with it; its validation score is your reward.

    ## Description

    The meta-environment of DERL (Dual-Evolving, at first called Differentiable Evolutionary, Reinforcement
    Learning). A step takes a *reward program*, an arithmetic expression such as ``g1+0.5*g2`` over the task's
    primitives g1..gk, trains an inner policy for real with TRL's GRPO under that reward, and returns the policy's
    score on a validation split. Whoever can step an environment can search: an LLM proposer trained by policy
    gradient, random search, a prompted LLM, MaskablePPO, or your own optimizer. Every step is recorded in a
    ledger in the run directory.

    ## Action Space

    :class:`derl_gym.programs.ProgramSpace`, a ``MultiDiscrete`` of shape ``(L,)``: token ids over the grammar's
    alphabet (``<end>``, the primitives, ``+ - * / **``, digits, ``.``, parentheses), padded with ``<end>``.
    ``env.unwrapped.programs.encode("g1+0.5*g2")`` writes an action, ``.decode`` reads one, ``.mask(prefix)``
    gives the legal next tokens and ``.sample()`` draws from the grammar's prior. An ill-formed program is a
    legal action: it scores 0.

    ## Observation Space

    A ``Dict``, all of it about this search and none of it about the test split:

    | key | space | meaning |
    |---|---|---|
    | ``progress`` | ``Box(0, 1, (1,))`` | share of the episode's programs that are scored |
    | ``program`` | ``MultiDiscrete`` ``(L,)`` | the last program's ids; all ``<end>`` at the start |
    | ``score`` | ``Box(0, 1, (1,))`` | its validation score |
    | ``best_program`` | ``MultiDiscrete`` ``(L,)`` | the best program's ids so far |
    | ``best_score`` | ``Box(0, 1, (1,))`` | its validation score |

    ## Starting State

    No program is scored. ``reset(seed=s)`` fixes the inner runs' seeds: data order, rollouts and evaluation.
    All programs of an episode share them (common random numbers).

    ## Rewards

    The validation score in [0, 1]. An ill-formed program, or one whose reward is undefined on a real rollout
    (division by zero, overflow), scores 0 and ``info["reason"]`` says why. A run that failed through no fault
    of the program (killed, out of memory, timed out) is retried, and then raises
    :class:`derl_gym.envs.InfrastructureFailure`; it is never a score.

    ## Episode End

    ``terminated`` after ``outer_steps * group_size`` programs. Never truncated.

    ## Information

    ``reset``: ``instruction`` (what a proposer should read) and ``seed``. ``step``: ``program``, ``status``
    (``"scored"``, ``"invalid"``, ``"failed"``), ``reason``, ``structure`` (``"stable"``, ``"unstable"``,
    ``"invalid"``; paper section 5.4), ``key`` (equivalence class), ``trial`` (its row in the ledger), ``seed``,
    ``repeated`` (whether the episode had proposed this class before), ``tokens``, ``flops`` and ``stopped`` (whether
    ``halving`` stopped it early). Wall-clock times are in the ledger.

    ## Arguments

    All are JSON-able; ``gym.make("DERL-Arithmetic-v0", outer_steps=4, inner={"steps": 16})``.

    * ``preset`` (by id): settings for a machine of some size, ``"paper"``, ``"single-gpu"`` or ``"smoke"``; whatever
      else is given outranks it. ``derl-gym envs ENV`` tells a task's.
    * ``variant="base"``: every inner run starts from the base policy. ``"full"``: the best policy of each outer
      step starts the next one.
    * ``outer_steps`` (by id or preset, else 10): outer steps per episode. ``group_size`` (by preset, else 8):
      programs per outer step.
    * ``inner={}``: overrides of :class:`derl_gym.inner.config.InnerConfig`. With ``max_flops_ratio`` an episode's
      first step begins with a reference run, trained with the outcome reward g1 from the base policy and without that
      cap; every other inner run may then take so many times its training FLOPs (paper appendix H).
    * ``final_inner={}``: what is different in the final training, which is :mod:`derl_gym.protocol`'s.
    * ``proposer`` (by preset, else ``"small"``): the model of a proposer that is a language model; read by agents.
    * ``primitives=None``: names that programs may use, ``["g1", "g3", "g4"]``, the paper's removal ablation.
      ``flip=()``: names whose sign is turned round, ``["g2"]``, its flip ablation (section 5.3).
    * ``mask="grammar"``: legal next tokens; ``"charset"`` is the paper's. ``max_program_length`` (by task): longest
      program, in tokens; ``max_digits=3``: most digits of a number before the point, and after it.
    * ``workers=1``: inner runs at a time. ``pool="processes"``: on this machine; ``"ray"``: on a Ray cluster.
    * ``run_dir=None``: folder of ledger and logs; a new one under ``runs/`` by default. The folder of an earlier
      run with the same settings gives its results back, and carries on behind them.
    * ``cache="equivalent"``: one inner run per class of programs with equal GRPO advantages. ``"exact"``: per text.
      ``"off"``: every proposal is trained; a repeated class gets a fresh seed. ``"bundled"``: like ``"equivalent"``,
      but scores come from inner runs that were measured beforehand, where the task has a table of them; inner seeds
      are the table's, and unless they are given, ``max_program_length`` and ``max_digits`` are those at which the
      table has every program. ``on_miss="run"`` trains what it has not, ``"error"`` raises ``NotMeasured``.
    * ``halving=0``: how often the group of an outer step is halved while it trains, for less cost than the paper's
      protocol (0) has. With 2 all programs train for a quarter of their training and are evaluated, the better half
      trains up to a half, and of these the better half to the end; the others score what they scored when they were
      stopped. That is successive halving with eta = 2. The programs of a step have to come together:
      ``gym.make_vec(..., num_envs=group_size)``.
    * ``cache_dir=None``: folder of scores that runs share. ``keep_policies=False``: keep every inner policy.
    * ``task`` (by id): where the task's class is, ``"module:Class"``. ``task_options={}``: its keyword arguments.
    * ``data_dir=None``: local data, for tasks that read some.
    * ``on_infrastructure_failure="raise"``, or ``"zero"``: reward 0 for a failed run, which stays failed in the
      ledger.

    ## References

    S. Cheng, T. Li, X. Huang, X. Yin and D. Zou, "Differentiable Evolutionary Reinforcement Learning",
    arXiv:2512.13399: sections 3 and 4, appendices B, F and I.

    ## Version History

    * v0: first version. A new version comes only when scores change.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "human"], "render_fps": 1}

    def __init__(self, *, render_mode: str | None = None, **settings: Any) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be one of 'ansi', 'human' or None, not {render_mode!r}")
        self.render_mode = render_mode
        self.loop = OuterLoop(make_settings(settings), lambda: self.spec.id if self.spec else "")
        if render_mode == "human":
            self.loop.on_news = print
        self.action_space = self.loop.programs
        self.observation_space = observation_space(self.loop)
        self._scored: list[Scored] = []
        self._started = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start a search. See the class docstring.

        Raises:
            ValueError: for a seed that is no whole number from 0 to 2**63 - 1.
        """
        seed = checked_seed(seed)
        super().reset(seed=seed)
        self.loop.begin(seed if seed is not None else int(self.np_random.integers(2**31)))
        self._scored = []
        self._best = (self._empty(), 0.0)
        self._last = (self._empty(), 0.0)
        self._started = True
        return self._observation(), {"instruction": self.instruction, "seed": self.loop.seed}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Train an inner policy under one program and return its validation score. See the class docstring."""
        if not self._started or self.loop.done:
            raise ResetNeeded("the episode is over or was never started: call env.reset() before env.step()")
        ids = checked_actions(action, (self.programs.shape[0],), self.programs.grammar.vocab_size)
        (scored,) = self.loop.score(ids[None])
        self._scored.append(scored)
        self._last = (ids, scored.score)
        if scored.score > self._best[1]:
            self._best = self._last
        if self.render_mode == "human":
            print(describe(scored))
        return self._observation(), scored.score, self.loop.done, False, scored.info()

    def render(self) -> str | None:
        """``"ansi"``: the episode's programs so far, one a line. ``"human"`` prints each as it is scored."""
        if self.render_mode != "ansi":
            return None
        return "\n".join(map(describe, self._scored)) or "no program scored yet"

    def close(self) -> None:
        """Kill what runs and let go of the run directory."""
        self.loop.close()

    def _empty(self) -> np.ndarray:
        return np.zeros(self.programs.shape, dtype=np.int64)

    def _observation(self) -> dict[str, np.ndarray]:
        total = self.loop.settings.outer_steps * self.loop.settings.group_size
        return {
            "progress": np.array([len(self._scored) / total], dtype=np.float32),
            "program": self._last[0].copy(),
            "score": np.array([self._last[1]], dtype=np.float32),
            "best_program": self._best[0].copy(),
            "best_score": np.array([self._best[1]], dtype=np.float32),
        }


def observation_space(loop: OuterLoop) -> spaces.Space[Any]:
    """What one slot observes."""
    parts: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(0.0, 1.0, (1,), np.float32) for name in ("progress", "score", "best_score")
    }
    for name in ("program", "best_program"):
        parts[name] = spaces.MultiDiscrete([loop.grammar.vocab_size] * loop.grammar.max_length)
    return spaces.Dict(parts)


def checked_seed(seed: Any) -> int | None:
    """A seed that fits the infos' int64, or ``None``.

    Raises:
        ValueError: for anything else, also for a list of seeds: the programs of a search share one.
    """
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(
            f"expected one whole number from 0 to 2**63 - 1 as seed (the programs of a search share it), got {seed!r}"
        )
    return int(seed)


def checked_actions(actions: Any, shape: tuple[int, ...], vocab_size: int) -> np.ndarray:
    """Token ids as a fresh int64 array.

    Raises:
        ValueError: when the shape or an id is wrong.
    """
    try:
        ids = np.array(actions)
    except (TypeError, ValueError):  # rows of different lengths
        ids = np.empty(0, dtype=object)
    if ids.shape != shape or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"expected token ids of shape {shape} (integers), got {ids.dtype} of shape {ids.shape}; "
            "write actions with programs.encode('g1+0.5*g2')"
        )
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(f"token ids must lie in 0..{vocab_size - 1}, got {ids.min()}..{ids.max()}")
    return ids.astype(np.int64)
