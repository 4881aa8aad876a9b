"""Tree-structured Parzen estimators over a template of programs, by Optuna (extra ``agents``).

The template is the grammar's prior (``derl_gym.programs.prior``) with every random choice made a categorical
parameter: a weight for each primitive, and at most one bent term. Every parameter then means the same in all programs,
which a TPE needs; of coordinates or tokens by their place in the text this cannot be said.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
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
ATTEMPTS = 8
"""Trials that are asked for until one is of a class that was not proposed before."""


class TPE(Agent):
    """Chooses weights by Optuna's TPESampler, whose model of good and bad choices grows with the scores.

    The study is built anew from the told trials before every outer step, with a sampler seeded by the agent's
    generator: what a resumed search does is what an uninterrupted one does. To each other, programs of one step are
    trials that run and may score badly (the "constant liar"). Choices of a class that has its score already are told at
    once, and others are asked for: no inner run is spent on them.

    Attributes:
        trials: The choices and the score of every trial told so far.
        known: Scores by class; choices of a class that has one are a trial at once, without an inner run.
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
        self.equivalence_key = envs.unwrapped.equivalence_key
        self.trials: list[tuple[dict[str, str], float]] = []
        self.known: dict[str, float] = {}
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
            self._choices = []
            asked: set[str] = set()
            while len(self._choices) < self.group_size:
                self._choices.append(self._new(study, asked))
        finally:
            optuna.logging.set_verbosity(before)
        return self.encode([self.text(choices) for choices in self._choices])

    def _new(self, study: optuna.Study, asked: set[str]) -> dict[str, str]:
        """The next choices whose class was not asked for before, if a few attempts find some; counts it as asked."""
        choices: dict[str, str] = {}
        for _ in range(ATTEMPTS):
            trial = study.ask()
            choices = self._choose(trial)
            key = self._key(choices)
            if key in self.known:  # other choices for a program that has its score: a trial that costs nothing
                self.trials.append((choices, self.known[key]))
                study.tell(trial, self.known[key])
            elif key not in asked:
                asked.add(key)
                break
        return choices

    def _key(self, choices: Mapping[str, str]) -> str:
        text = self.text(choices)
        return self.equivalence_key(text) or text

    def learn(self, actions: np.ndarray, scores: np.ndarray, info: Mapping[str, Any]) -> None:
        """Remember the trials."""
        for choices, score in zip(self._choices, scores, strict=True):
            self.trials.append((choices, float(score)))
            self.known[self._key(choices)] = float(score)

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
        """The program of some choices. What is too long loses, from its end, a weight or bend first, then a term."""
        used = [g for g in self.programs.grammar.primitives if choices[g] != "0"]
        weights = {g: choices[g] for g in used}
        bodies = {g: choices["form"].format(g=g, h=choices["other"]) if choices["bent"] == g else g for g in used}
        while used and not self.well_formed(_sum([(weights[g], bodies[g]) for g in used])):
            last = next((g for g in reversed(used) if (weights[g].strip("-"), bodies[g]) != ("1", g)), None)
            if last is None:
                used.pop()
            else:
                weights[last], bodies[last] = "-1" if weights[last][0] == "-" else "1", last
        return _sum([(weights[g], bodies[g]) for g in used]) or self.programs.grammar.primitives[0]

    def write_state(self, folder: Path) -> None:
        """The trials, and the choices behind the asked programs."""
        (folder / "tpe.json").write_text(
            json.dumps({"trials": self.trials, "known": self.known, "choices": self._choices})
        )

    def read_state(self, folder: Path) -> None:
        """Read what :meth:`write_state` wrote."""
        state = json.loads((folder / "tpe.json").read_text())
        self.trials = [(choices, score) for choices, score in state["trials"]]
        self.known, self._choices = state["known"], state["choices"]


def _sum(terms: Sequence[tuple[str, str]]) -> str:
    """``2*g1-g2`` of weights and the bodies of terms."""
    text = ""
    for weight, body in terms:
        sign, size = ("-", weight[1:]) if weight[0] == "-" else ("+", weight)
        text += sign + ("" if size == "1" else f"{size}*") + body
    return text.removeprefix("+")
