"""Searches written by hand, as the environment and the command line would leave them."""

import json
from pathlib import Path

import numpy as np
import pytest

from derl_gym.programs import Grammar, InvalidProgram, RewardProgram, states_of
from derl_gym.tasks import Primitive, Task
from derl_gym.trials.ledger import Ledger

GRAMMAR = Grammar(k=4)
PRIMITIVES = tuple(Primitive(f"g{i}", f"signal {i}", lambda completion, example: 0.0) for i in range(1, 5))
STATES = states_of(PRIMITIVES)


class FourSignals(Task):
    """A task that is never trained on; its primitives are binary."""

    name = "four-signals"
    version = "1"
    description = "nothing"
    primitives = PRIMITIVES
    base_policy = "none"

    def load(self, split):
        return []

    def correct(self, completion, example):
        return False


@pytest.fixture
def four_signals(monkeypatch):
    """Make the task importable as ``four_signals:FourSignals``."""
    import sys
    import types

    module = types.ModuleType("four_signals")
    module.FourSignals = FourSignals
    monkeypatch.setitem(sys.modules, "four_signals", module)


@pytest.fixture
def write_search(four_signals):
    return _write_search


def _write_search(
    folder: Path,
    agent: str = "random",
    seed: int = 0,
    groups=(("g1", "g1+g2"), ("g1+0.5*g2", "g1/g2")),
    waiting=0,
    tested=(),
    options=None,
    spoil=None,
    **settings,
) -> Path:
    """Write a ledger of ``groups`` of programs; the last ``waiting`` proposals have no outcome."""
    rng = np.random.default_rng([seed, len(agent)])
    size = max((len(group) for group in groups), default=2)
    config = {
        "environment": "DERL-FourSignals-v0",
        "task": "four_signals:FourSignals",
        "task_name": "four-signals",
        "task_version": "1",
        "variant": "base",
        "outer_steps": max(len(groups), 1),
        "group_size": size,
        "inner": {"steps": 3, "batch_size": 16},
    } | settings
    with Ledger(folder, config=config) as ledger:
        (folder / "search.json").write_text(json.dumps({"agent": agent, "agent_options": options or {}, "seed": seed}))
        if groups:
            ledger.begin_episode(0, seed)
        left = sum(len(group) for group in groups) - waiting
        for step, group in enumerate(groups):
            ids = np.zeros((len(group), GRAMMAR.max_length), dtype=np.int64)
            for slot, program in enumerate(group):
                if spoil is None:
                    ids[slot] = GRAMMAR.encode(program)
            ledger.propose(0, step, ids, list(group))
            for slot, program in enumerate(group):
                left -= 1
                if left >= 0:
                    _settle(ledger, rng, step, slot, program, len(groups), spoil)
        for program, test in tested:
            ledger.record_final([program], seed, test=test)
    return folder


def _settle(ledger, rng, step, slot, program, n_steps, spoil):
    try:
        parsed = RewardProgram.parse(program)
    except InvalidProgram as error:
        reason = spoil or str(error)
        ledger.settle(0, step, slot, identity=None, status="invalid", score=0.0, reason=reason)
        return
    key = parsed.equivalence_key(STATES)
    cached = ledger.trial(key) is not None
    if not cached:
        score = float(np.clip(0.1 + 0.25 * rng.random() + 0.4 * step / n_steps, 0, 1))
        curve = [{"reward": t / 10, "g1": score * (t + 1) / 20, "g2": 0.3, "g3": 0.2, "g4": 0.1} for t in range(20)]
        result = {"score": score, "curve": curve, "train_seconds": 2.0, "eval_seconds": 0.5, "eval_flops": 5e10}
        ledger.start_trial(key, program=program, key=key, seed=1)
        ledger.finish_trial(key, status="scored", score=score, result=result, seconds=2.75, tokens=40_000, flops=3e11)
    score = ledger.trial(key)["score"]
    ledger.settle(0, step, slot, identity=key, status="scored", score=score, cached=cached, seconds=0.1)
