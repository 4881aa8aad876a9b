"""The self-check of an agent: what it accepts, and that an agent broken in one way is told so."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from derl_agents import Agent
from derl_gym.testing import check_agent


class Good(Agent):
    """Random programs, and in the first slot the best so far with one more term."""

    name = "good"
    best, best_score = "g1", -1.0

    def propose(self, observation, info):
        texts = [self.programs.grammar.sample(self.rng) for _ in range(self.group_size)]
        longer = f"{self.best}+g2"
        return self.encode([longer if self.well_formed(longer) else "g3", *texts[1:]])

    def learn(self, actions, scores, info):
        if scores.max() > self.best_score:
            self.best, self.best_score = self.programs.decode(actions[scores.argmax()]), float(scores.max())

    def write_state(self, folder):
        (folder / "best.json").write_text(json.dumps([self.best, self.best_score]))

    def read_state(self, folder):
        self.best, self.best_score = json.loads((folder / "best.json").read_text())


def test_a_good_agent_passes(tmp_path: Path) -> None:
    report = check_agent(Good)
    assert report.problems == []
    assert report.lines[0].startswith("16 programs in 4 outer steps, 16 of which parse, such as 'g1+g2'")
    assert report.lines[1:] == [
        "the same seed gives the same programs, another one others",
        "saved in the middle of a search and loaded, it goes on as if nothing had happened",
        "groups that are all invalid, all equal, or of one program are survived",
    ]
    assert check_agent(lambda envs, seed=0: Good(envs, seed=seed), group_size=1).problems == []
    assert not list(tmp_path.iterdir()), "no run directory is made"


def test_the_global_generators_are_left_as_they_were() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()
    check_agent(Good)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def ask_with(change: Any) -> dict[str, Any]:
    """An ``ask`` whose array is changed on its way out, or replaced."""

    def ask(self: Any, observation: Any = None, info: Any = None) -> Any:
        return change(Good.ask(self, observation, info))

    return {"ask": ask}


def over(**parts: Any) -> type:
    return type("Broken", (Good,), parts)


def aliased(self, observation=None, info=None):
    Good.ask(self, observation, info)
    return self._pending


def spoils_observation(self, observation=None, info=None):
    observation["score"][:] = 1.0
    return Good.ask(self, observation, info)


def spoils_scores(self, actions, scores, info=None):
    Good.tell(self, actions, scores, info)
    scores -= 1.0


def leaves_pending(self, actions, scores, info=None):
    Good.tell(self, actions, scores, info)
    self._pending = actions


def spaced(actions):
    actions[0, :4] = [1, 0, 0, 1]
    return actions


def beyond(actions):
    actions[0, 0] = 99
    return actions


def global_numpy(self, observation, info):
    return self.encode([f"g1+{np.random.randint(9)}*g2" for _ in range(self.group_size)])


def global_random(self, observation, info):
    return self.encode([f"g1+{random.randrange(9)}*g2" for _ in range(self.group_size)])


COUNT = itertools.count(10)


def counts(self, observation, info):
    return self.encode([f"g1+{next(COUNT) % 1000}*g2" for _ in range(self.group_size)])


def pickles(self, folder):
    Good.write_state(self, folder)
    (folder / "state.bin").write_bytes(pickle.dumps(self.best))


def draws_when_saved(self, folder):
    Good.write_state(self, folder)
    self.rng.random()


def reads_later(self, folder):
    Good.read_state(self, folder)
    self.folder = folder


def needs_folder(self, observation, info):
    if hasattr(self, "folder"):
        (self.folder / "best.json").read_text()
    return Good.propose(self, observation, info)


def forgets_pending(self, folder):
    Good.load(self, folder)
    self._pending = None


def looks_at_the_sign(self, actions, scores, info=None):
    Good.tell(self, actions, scores, info)
    self.best = "g2" if np.signbit(scores).any() else "g3"


def pairs_up(self, observation, info):
    return self.encode(["g1+g2", "g1"] * max(1, self.group_size // 2))


class WithOptions(Good):
    @dataclasses.dataclass(frozen=True)
    class Options:
        score: Any = complex(1, 2)


@pytest.mark.parametrize(
    "agent, problem",
    [
        (type("Bare", (), {"__init__": lambda self, envs, seed: None, "ask": 1}), "Bare has no method ask, tell, save"),
        (lambda envs, seed: 1 / 0, "it cannot be made: ZeroDivisionError: division by zero"),
        (over(name=None), "Broken.name must be text"),
        (WithOptions, "its options are not JSON-able"),
        (over(pending="g1"), "pending must be None before the first ask()"),
        (over(propose=lambda self, observation, info: 1 / 0), "ask() fails: ZeroDivisionError: division by zero"),
        (over(**ask_with(lambda actions: actions.tolist())), "ask() returns a list, expected a numpy array"),
        (over(**ask_with(lambda actions: actions[:, :5])), "ask() returns shape (4, 5), expected (4, 32)"),
        (over(**ask_with(lambda actions: actions.astype(np.float32))), "ask() returns float32, expected int64"),
        (over(**ask_with(lambda actions: actions.astype(np.int32))), "ask() returns int32, expected int64"),
        (over(**ask_with(beyond)), "ask() returns ids from 0 to 99, expected 0 to 22"),
        (over(**ask_with(spaced)), "ask() writes tokens behind <end>: [1, 0, 0, 1, "),
        (over(ask=aliased), "pending must be the asked programs, whatever the caller does"),
        (over(ask=spoils_observation), "ask() changes the observation that it is given"),
        (over(tell=spoils_scores), "tell() changes the scores that it is given"),
        (over(tell=leaves_pending), "pending must be None after tell()"),
        (over(tell=lambda self, actions, scores: None), "tell() fails: TypeError"),
        (over(propose=lambda self, observation, info: np.full(self.shape, 5)), "none of its 16 programs parses"),
        (over(propose=global_numpy), "it draws from a global generator (random, numpy.random or torch)"),
        (over(propose=global_random), "it draws from a global generator (random, numpy.random or torch)"),
        (over(propose=counts), "two agents with the same seed and the same scores differ: 'g1+"),
        (over(write_state=pickles), "save() writes a pickle, state.bin"),
        (over(write_state=lambda self, folder: 1 / 0), "save() before the first ask() fails: ZeroDivisionError"),
        (over(write_state=draws_when_saved), "save() before the first ask() changes what is proposed afterwards"),
        (
            over(read_state=lambda self, folder: None),
            "loaded from what save() wrote with the programs of outer step 3 asked goes on otherwise",
        ),
        (
            over(read_state=lambda self, folder: 1 / 0),
            "load() of what save() wrote before the first ask() fails: ValueError: the agent checkpoint",
        ),
        (over(read_state=reads_later, propose=needs_folder), "ask() fails: FileNotFoundError"),
        (over(load=forgets_pending), "load() does not bring back the asked programs"),
        (
            over(learn=lambda self, actions, scores, info: self.rng.choice(4, p=scores / scores.sum())),
            "in an outer step with all programs invalid, with score 0.0: tell() fails: ValueError",
        ),
        (over(tell=looks_at_the_sign), "scores of -0.0 are not taken for 0.0: 'g3+g2' and 'g2+g2' in outer step 2"),
        (over(propose=pairs_up), "in a group of one program: ask() fails: ValueError"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_broken_agent_is_told_so(agent: Any, problem: str) -> None:
    (found,) = check_agent(agent).problems
    assert problem in found
