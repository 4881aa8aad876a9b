"""Tree-structured Parzen estimators over a template of programs, by Optuna (extra ``agents``).

The template is the grammar's prior (``derl_gym.programs.prior``) with every random choice made a categorical
parameter: a weight for each primitive, and at most one bent term. Every parameter then means the same in all programs,
which a TPE needs; of coordinates or tokens by their place in the text this cannot be said.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from derl_agents.base import Agent
from derl_gym.fields import check_fields

try:
    import optuna
except ImportError as error:
    raise ImportError("the agent tpe needs the package optuna: pip install 'derl-gym[agents]'") from error

WEIGHTS = ("0", "1", "2", "3", "4", "5", "10", "0.1", "0.2", "0.5", "1.5", "-0.5", "-1", "-2")
"""Weights of a primitive; with 0 it is left out."""
BENDS = ("{g}*{h}", "{g}*({h}+1)", "{g}/({h}+1)", "{g}**2", "{g}**0.5")
"""Forms of the bent term; h is any primitive."""


class TPE(Agent):
    """Chooses weights by Optuna's TPESampler, whose model of good and bad choices grows with the scores.

    The study is built anew from the told trials before every outer step, with a sampler seeded by the agent's
    generator: what a resumed search does is what an uninterrupted one does. To each other, programs of one step are
    trials that run and may score badly (the "constant liar"), so that they differ.

    Attributes:
        trials: The choices and the score of every trial told so far.
    """

    name = "tpe"

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The sampler's options."""

        startup: int = 10
        """First trials, drawn at random."""
        multivariate: bool = False
        """Model the choices together instead of each by itself."""

        def __post_init__(self) -> None:
            check_fields(self, at_least={"startup": 1})

    def __init__(self, envs: Any, options: Options | None = None, *, seed: int = 0, **fields: Any) -> None:
        super().__init__(envs, options, seed=seed, **fields)
        first = self.programs.grammar.primitives[0]
        self.weights = [text for text in WEIGHTS if text in "01" or self.well_formed(f"{text}*{first}")]
        self.trials: list[tuple[dict[str, str], float]] = []
        self._choices: list[dict[str, str]] = []

    def propose(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> np.ndarray:
        """Ask the study for n trials, and write each as a program."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=int(self.rng.integers(2**31)),
                n_startup_trials=self.options.startup,
                multivariate=self.options.multivariate,
                group=self.options.multivariate,
                constant_liar=True,
            )
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(direction="maximize", sampler=sampler)
            for choices, score in self.trials:
                kinds = {name: self._distribution(name) for name in choices}
                study.add_trial(optuna.create_trial(params=choices, distributions=kinds, value=score))
            self._choices = [self._choose(study.ask()) for _ in range(self.group_size)]
        finally:
            optuna.logging.set_verbosity(before)
        return self.encode([self.text(choices) for choices in self._choices])

    def learn(self, actions: np.ndarray, scores: np.ndarray, info: Mapping[str, Any]) -> None:
        """Remember the trials."""
        self.trials += [(choices, float(score)) for choices, score in zip(self._choices, scores, strict=True)]

    def _choose(self, trial: optuna.Trial) -> dict[str, str]:
        for name in (*self.programs.grammar.primitives, "bent"):
            trial.suggest_categorical(name, self._distribution(name).choices)
        if trial.params["bent"] != "no":
            for name in ("form", "other"):
                trial.suggest_categorical(name, self._distribution(name).choices)
        return dict(trial.params)

    def _distribution(self, name: str) -> Any:
        primitives = self.programs.grammar.primitives
        choices = {"bent": ("no", *primitives), "form": BENDS, "other": primitives}.get(name, self.weights)
        return optuna.distributions.CategoricalDistribution(choices)

    def text(self, choices: Mapping[str, str]) -> str:
        """The program of some choices; terms from the last one on are left out until it fits the length limit."""
        terms = []
        for g in self.programs.grammar.primitives:
            weight = choices[g]
            bent = choices["bent"] == g
            body = choices["form"].format(g=g, h=choices["other"]) if bent else g
            sign, weight = ("-", weight[1:]) if weight[0] == "-" else ("+", weight)
            if weight != "0":
                terms.append(sign + ("" if weight == "1" else f"{weight}*") + body)
        while terms and not self.well_formed("".join(terms).removeprefix("+")):
            terms.pop()
        return "".join(terms).removeprefix("+") or self.programs.grammar.primitives[0]

    def write_state(self, folder: Path) -> None:
        """The trials, and the choices behind the asked programs."""
        (folder / "tpe.json").write_text(json.dumps({"trials": self.trials, "choices": self._choices}))

    def read_state(self, folder: Path) -> None:
        """Read what :meth:`write_state` wrote."""
        state = json.loads((folder / "tpe.json").read_text())
        self.trials = [(choices, score) for choices, score in state["trials"]]
        self._choices = state["choices"]
