"""Comparisons of outer optimisers: every measure worked out by hand from small ledgers."""

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from derl_gym.programs import RewardProgram, states_of
from derl_gym.report import write_report
from derl_gym.report.comparison import compare, duels_table, searches_of, standings_table
from derl_gym.report.runs import load_runs
from derl_gym.trials.ledger import Ledger


@pytest.fixture
def write(tmp_path, four_signals):
    """Write a search: groups of (program, score) pairs; a score of ``None`` is an invalid program."""

    def _write(agent, seed, *groups, waiting=0, tested=(), environment="DERL-FourSignals-v0", **settings):
        from four_signals import FourSignals  # pyright: ignore[reportMissingImports]

        states = states_of(FourSignals.primitives)
        folder = tmp_path / environment / f"{agent}-seed{seed}"
        config = {"environment": environment, "task": "four_signals:FourSignals", "task_name": "four-signals"}
        config |= {"variant": "base", "outer_steps": len(groups), "group_size": len(groups[0])} | settings
        with Ledger(folder, config=config) as ledger:
            (folder / "search.json").write_text(json.dumps({"agent": agent, "agent_options": {}, "seed": seed}))
            ledger.begin_episode(0, seed)
            left = sum(map(len, groups)) - waiting
            for step, group in enumerate(groups):
                ledger.propose(0, step, np.zeros((len(group), 4), dtype=int), [program for program, _ in group])
                for slot, (program, score) in enumerate(group):
                    left -= 1
                    if left < 0:
                        continue
                    if score is None:
                        ledger.settle(0, step, slot, identity=None, status="invalid", score=0.0, reason="no program")
                        continue
                    key = RewardProgram.parse(program).equivalence_key(states)
                    known = ledger.trial(key) is not None
                    if not known:
                        ledger.start_trial(key, program=program, key=key, seed=1, pid=1)
                        result = {"train_seconds": 1.0}
                        ledger.finish_trial(key, status="scored", score=score, seconds=2.0, result=result)
                    ledger.settle(0, step, slot, identity=key, status="scored", score=score, cached=known)
            for program, test in tested:
                ledger.record_final([program], seed, test=test)
        return folder

    return _write


def test_the_measures_of_one_search(write):
    folder = write(
        "random",
        7,
        [("g1", 0.2), ("g1+", None), ("2*g1", 0.2), ("g2", 0.1)],
        [("g1+g2", 0.4), ("g2+g1", 0.4), ("g3", 0.0), ("g1*g2", 0.6)],
        [("g4", 0.5), ("g1", 0.2), ("g2", 0.1), ("g3", 0.0)],
        tested=[("g1*g2", 0.5), ("g1*g2", 0.3), ("g4", 0.9)],
        waiting=1,
    )
    (search,) = searches_of(load_runs([folder]))
    assert search.scores == (0.2, 0.0, 0.2, 0.1, 0.4, 0.4, 0.0, 0.6), "complete outer steps only"
    assert search.best_so_far.tolist() == [0.2, 0.2, 0.2, 0.2, 0.4, 0.4, 0.4, 0.6]
    assert search.best == 0.6 and search.last == pytest.approx(0.35)
    assert search.area == pytest.approx((4 * 0.2 + 3 * 0.4 + 0.6) / 8)
    assert search.invalid == 1 / 8 and search.duplicates == 2 / 8, "2*g1 is g1 and g2+g1 is g1+g2"
    assert search.inner_runs == 5
    assert search.reached(0.4) == 5 and search.reached(0.61) is None
    assert search.test == 0.5 and search.gap == pytest.approx(0.1), "a second opening does not count"
    assert (search.label, search.environment, search.seed) == ("random", "DERL-FourSignals-v0", 7)


def test_agents_against_each_other(write):
    folders = []
    for seed in range(4):
        low, high = 0.1 + 0.01 * seed, 0.4 + 0.01 * seed
        folders.append(write("random", seed, [("g1", low), ("g2", 0.0)], [("g3", low), ("g4", low)]))
        folders.append(write("derl", seed, [("g1", low), ("g2", 0.0)], [("g1+g2", high), ("g4", high)]))
    found = compare(searches_of(load_runs(folders)))
    random, derl = found.standings
    assert (random.label, random.searches, derl.label) == ("random", 4, "derl")
    # Interquartile mean over four seeds: the middle two.
    assert random.area.value == pytest.approx(0.115) and derl.best.value == pytest.approx(0.415)
    assert derl.area.value == pytest.approx((2 * 0.115 + 2 * 0.415) / 4)
    assert random.last.value == pytest.approx(0.115) and random.test is None and random.gap is None
    assert found.threshold == pytest.approx(0.95 * 0.43)
    assert (random.reached, random.proposals) == (0, None)
    assert (derl.reached, derl.proposals) == (3, 3.0), "0.40 is below the threshold"
    assert [round(point.value, 3) for point in found.anytime["derl"]] == [0.115, 0.115, 0.415, 0.415]
    (duel,) = found.duels
    assert (duel.a, duel.b, duel.pairs) == ("derl", "random", 4), "against random search, where it takes part"
    assert duel.difference.value == pytest.approx(0.15) and duel.p == 0.125 and not duel.shown
    assert found.uneven == ()
    assert compare(searches_of(load_runs(folders)), "last", against="derl").duels[0].a == "random"


def test_the_comparison_is_shown(write, tmp_path):
    folders = [
        write(agent, seed, [("g1", 0.1 + gain + seed / 100), ("g1+", None)])
        for agent, gain in (("random", 0.0), ("derl", 0.2))
        for seed in range(6)
    ]
    runs = load_runs(folders)
    compared = compare(searches_of(runs))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(standings_table(compared), duels_table(compared))
    text = console.export_text()
    page = write_report(runs, tmp_path / "report.html").read_text()
    for shown in (
        "12.5 (11.0 to 14.0)",
        "never (0 of 6)",
        "20.0 (20.0 to 20.0)",
        "0.0312",
        "yes",
        "100.0 (100.0 to 100.0)",
    ):
        assert shown in text and shown in page, shown
    assert "derl - random" in text and "derl − random" in page
    with pytest.raises(ValueError, match="there is no agent 'nobody' among random, derl"):
        write_report(runs, tmp_path / "report.html", against="nobody")


def test_what_is_uneven_is_said(write):
    folders = [
        write("a", 0, [("g1", 0.1), ("g2", 0.2)]),
        write("a", 1, [("g1", 0.1), ("g2", 0.2)]),
        write("b", 0, [("g1", 0.1), ("g2", 0.2)], [("g1", 0.1), ("g3", 0.2)]),
    ]
    found = compare(searches_of(load_runs(folders)))
    assert found.uneven == (
        "not all searches have the same number of proposals: a outer_steps=1 2, b outer_steps=2 4",
        "not all agents have searched with the same seeds; duels are of those that both have",
    )
    assert len(found.anytime["a outer_steps=1"]) == 2
    assert found.duels[0].pairs == 1


def test_environments_are_strata(write):
    folders = [
        write("a", seed, [("g1", score + seed / 100), ("g2", 0.0)], environment=environment)
        for environment, score in (("One-v0", 0.1), ("Two-v0", 0.8))
        for seed in range(5)
    ]
    together = [dataclasses.replace(search, label="a") for search in searches_of(load_runs(folders))]
    (standing,) = compare(together).standings
    assert standing.searches == 10
    assert standing.best.high - standing.best.low < 0.4, "environments are not drawn, seeds are"


def test_nothing_to_compare(write):
    with pytest.raises(ValueError, match="nothing to compare"):
        compare([])
    searches = searches_of(load_runs([write("a", 0, [("g1", 0.1), ("g2", 0.2)])]))
    with pytest.raises(ValueError, match="there is no metric 'worst'; there are area, best, last, test"):
        compare(searches, "worst")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="a search of a has not"):
        compare(searches, "test")
    assert compare(searches).duels == ()
    assert searches_of(load_runs([write("b", 0, [("g1", 0.1), ("g2", 0.2)], waiting=1)])) == []
