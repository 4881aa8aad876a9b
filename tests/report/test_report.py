"""The report's numbers, and that it survives ledgers of every kind. How it looks: test_browser.py."""

import io
import json
import re
import sqlite3
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from derl_gym.report import summary_table, write_report
from derl_gym.report.figures import scores_figure
from derl_gym.report.runs import load_runs
from derl_gym.report.summary import Cost, by_label, score_curve, structure_curve, summarise
from derl_gym.report.summary import test_curve as curve_of_tests
from derl_gym.trials.ledger import Ledger


def numbers(folder):
    ((label, runs),) = by_label(load_runs([folder])).items()
    return summarise(label, runs), runs


def shown(table):
    text = io.StringIO()
    Console(file=text, width=160).print(table)
    return text.getvalue()


def test_a_search_is_counted_right(tmp_path, write_search):
    write_search(tmp_path, groups=[("g1", "g1+"), ("2*g1", "g1*g2*g3")])
    summary, runs = numbers(tmp_path)
    scores = [row["score"] for row in runs[0].proposals]
    assert (summary.inner_runs, summary.cached, summary.invalid, summary.failed, summary.waiting) == (2, 1, 1, 0, 0)
    assert score_curve(runs) == {0: [pytest.approx(scores[0] / 2)], 1: [pytest.approx((scores[2] + scores[3]) / 2)]}
    assert summary.best == max(scores) and summary.tokens == 80_000
    assert (summary.training, summary.evaluation) == (Cost(4.0, 5e11), Cost(1.0, 1e11))
    assert summary.processes == Cost(0.5) and summary.reference == summary.proposer == Cost()
    assert summary.total == Cost(5.5, 6e11) and "reference runs" not in summary.parts
    assert structure_curve(runs) == {
        0: {"stable": 0.5, "unstable": 0.0, "invalid": 0.5},
        1: {"stable": 0.5, "unstable": 0.5, "invalid": 0.0},
    }


def test_a_part_of_a_group_is_no_mean(tmp_path, write_search):
    write_search(tmp_path, waiting=1)
    summary, runs = numbers(tmp_path)
    assert list(score_curve(runs)) == [0] and summary.waiting == 1


def test_failed_runs_are_no_scores(tmp_path, write_search):
    write_search(tmp_path, groups=[("g1", "g2")], waiting=1)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("UPDATE proposals SET status = 'failed', score = NULL WHERE slot = 1")
    summary, runs = numbers(tmp_path)
    assert score_curve(runs) == {0: [runs[0].proposals[0]["score"]]} and summary.failed == 1


def test_where_the_time_went(tmp_path, write_search):
    """The first of three inner runs is the reference run; the second came from a shared cache and cost nothing here."""
    write_search(tmp_path, groups=[("g1", "g2"), ("g3", "g4")])
    with Ledger(tmp_path) as ledger:
        ledger.set_reference(0, ledger.trials()[0]["identity"])
        for step, seconds in enumerate((1.5, 2.0)):
            ledger._db.update("proposer", {"step": step}, {"seconds": seconds})
        ledger._db.update("trials", {"identity": ledger.trials()[1]["identity"]}, {"seconds": 0.0})
    summary, _ = numbers(tmp_path)
    assert summary.parts == {
        "inner training": Cost(4.0, 5e11),
        "validation": Cost(1.0, 1e11),
        "reference runs": Cost(2.5, 3e11),
        "processes": Cost(0.75),
        "proposer": Cost(3.5),
    }
    text = shown(summary_table([tmp_path]))
    assert re.search(r"inner training +4 s, 500 G FLOPs", text) and re.search(r"reference runs +2 s, 300 G FLOPs", text)
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "<td>2 s, 300 G FLOPs</td>" in page and '"reference runs"' in page


def test_every_opening_of_the_test_split_is_shown(tmp_path, write_search):
    write_search(tmp_path)
    with Ledger(tmp_path) as ledger:
        for seed, test in ((0, 0.5), (0, 0.7), (1, 0.3)):
            result = {"standard_error": 0.021, "scores": {"gsm8k": test + 0.1, "math": test - 0.1}}
            ledger.record_final(["g1", "g2"], seed, test=test, result=result)
    summary, _ = numbers(tmp_path)
    assert summary.openings == 3 and summary.test.mean == pytest.approx(0.4), "the second look does not count"
    assert {name: found.mean for name, found in summary.benchmarks.items()} == pytest.approx(
        {"gsm8k": 0.5, "math": 0.3}
    )
    text = shown(summary_table([tmp_path]))
    assert re.search(r"test, gsm8k, % +50\.0", text) and re.search(r"openings of the test split +3", text)
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    table = page[page.index("Final policies") : page.index("One row per opening")]
    cells = re.findall(r"<td>(.*?)</td>", table)
    rows = [cells[i : i + 6] for i in range(0, len(cells), 6)]
    assert [(row[1], row[2], row[3], row[-1]) for row in rows] == [
        ("0", "50.0", "2.1", "1"),
        ("0", "70.0", "2.1", "2"),
        ("1", "30.0", "2.1", "1"),
    ]
    assert rows[0][4].split() == ["gsm8k", "60.0", "math", "40.0"]


def test_seeds_are_one_agent_and_options_tell_agents_apart(tmp_path, write_search):
    write_search(tmp_path / "a", agent="derl", seed=0, options={"lr": 1e-3})
    write_search(tmp_path / "b", agent="derl", seed=1, options={"lr": 1e-3})
    write_search(tmp_path / "c", agent="derl", seed=0, options={"lr": 2e-3})
    groups = by_label(load_runs([tmp_path]))
    assert {label: len(runs) for label, runs in groups.items()} == {"derl lr=0.001": 2, "derl lr=0.002": 1}


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ({"inner_config": {"steps": 3, "batch_size": 32}}, " inner.batch_size=32"),
        ({"flip": ["g2", "g3"]}, " flip=g2,g3"),
        ({"primitives": ["g1", "g2"]}, " primitives=g1,g2"),
        ({"cache": "off"}, " cache=off"),
        ({"mask": "charset"}, " mask=charset"),
        ({"outer_steps": 7}, " outer_steps=7"),
        ({"group_size": 1}, " group_size=1"),
        ({"task_options": {"level": 2}}, " task.level=2"),
        ({"keep_policies": True, "data_dir": "/elsewhere"}, ""),
    ],
)
def test_other_settings_are_another_experiment(tmp_path, write_search, settings, end):
    write_search(tmp_path / "a", seed=0)
    write_search(tmp_path / "b", seed=1, **settings)
    first, second = load_runs([tmp_path])
    assert second.label == "random" + end and (first.label == second.label) == (not end)


def test_the_same_search_and_seed_count_once(tmp_path, write_search):
    for folder in ("a", "b"):
        write_search(tmp_path / folder, seed=3)
    (run,) = load_runs([tmp_path])
    assert run.folder == tmp_path / "a" and run.repeats == (tmp_path / "b",)
    assert "same seed is counted: 1" in " ".join(shown(summary_table([tmp_path])).split())
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert f"same seed is counted</dt><dd>{tmp_path / 'b'}</dd>" in page


def test_structures_are_those_over_the_tasks_states(tmp_path, write_search):
    arithmetic = {"environment": "DERL-Arithmetic-v0", "task": "derl_gym.tasks.arithmetic:Arithmetic"}
    write_search(tmp_path, groups=[("g1*g2",)], **arithmetic)
    run = load_runs([tmp_path])[0]
    assert run.proposals[0]["structure"] == "stable" and len(run.states) == 10
    assert replace(run, states=None).analyse("g1*g2").structure == "unstable"


@pytest.mark.parametrize(("groups", "tick"), [(1, 1), (2, 1), (30, 5)])
def test_steps_are_whole_numbers_on_the_axis(tmp_path, write_search, groups, tick):
    write_search(tmp_path, groups=[("g1", "g2")] * groups)
    assert scores_figure(load_runs([tmp_path])).layout.xaxis.dtick == tick


def test_sentences_stand_apart(tmp_path, write_search):
    write_search(tmp_path, tested=[("g1", 0.5)])
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert re.search(r"being high\.\s+Test scores come", page)


def test_two_searches_show_no_interval_and_three_do(tmp_path, write_search):
    for seed in range(2):
        write_search(tmp_path / str(seed), seed=seed)
    row = re.compile(r"last step, % .* ± ")
    assert not row.search(shown(summary_table([tmp_path]))) and "95 % t interval" in shown(summary_table([tmp_path]))
    write_search(tmp_path / "2", seed=2)
    assert row.search(shown(summary_table([tmp_path])))


def test_a_folder_named_twice_is_read_once(tmp_path, write_search):
    write_search(tmp_path / "a")
    assert len(load_runs([tmp_path, tmp_path / "a"])) == 1


def test_the_agent_is_found_in_its_checkpoint(tmp_path, write_search):
    write_search(tmp_path)
    (tmp_path / "search.json").unlink()
    assert load_runs([tmp_path])[0].agent == tmp_path.name
    (tmp_path / "checkpoints" / "episode-0000-step-000000").mkdir(parents=True)
    (tmp_path / "checkpoints" / "episode-0000-step-000000" / "agent.json").write_text('{"agent": "mine", "seed": 5}')
    assert load_runs([tmp_path])[0].agent == "mine" and load_runs([tmp_path])[0].seed == 5


def test_test_scores_come_only_from_a_whole_analysis(tmp_path, write_search):
    write_search(tmp_path, groups=[("g1", "g1+g2"), ("g3", "g4")])
    identities = [row["identity"] for row in load_runs([tmp_path])[0].proposals]
    assert curve_of_tests(load_runs([tmp_path])) == {}
    (tmp_path / "test_analysis.json").write_text(json.dumps(dict.fromkeys(identities[:3], 0.25)))
    assert {step: test for step, (_, test) in curve_of_tests(load_runs([tmp_path])).items()} == {0: 0.25}


def test_a_second_look_at_the_test_split_does_not_count(tmp_path, write_search):
    write_search(tmp_path, tested=[("g1", 0.5), ("g1", 0.9)])
    assert numbers(tmp_path)[0].test.mean == 0.5


@pytest.mark.parametrize("groups", [(), (("g1", "g2"),), (("", "((("), ("1", "g1/0"))])
@pytest.mark.parametrize("waiting", [0, 2])
def test_every_ledger_gives_a_page_and_a_table(tmp_path, write_search, groups, waiting):
    write_search(tmp_path / "run", groups=groups, waiting=waiting if groups else 0)
    page = write_report([tmp_path / "run"], tmp_path / "pages" / "report.html").read_text()
    assert "</html>" in page and "DERL-FourSignals-v0" in page
    assert "random" in shown(summary_table([tmp_path / "run"]))


def test_a_task_that_is_not_here_costs_the_audit_alone(tmp_path, write_search, monkeypatch):
    write_search(tmp_path)
    monkeypatch.delitem(sys.modules, "four_signals")
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "<math" in page and "more of g1 is never worse</li>" not in page


EVIL = '<img src=x onerror="alert(1)">[bold]</script><script>alert(2)</script>'


def test_what_a_proposer_wrote_is_never_markup(tmp_path, write_search):
    write_search(tmp_path, agent=EVIL, groups=[(EVIL, "g1"), ("g2", EVIL)], spoil=EVIL, options={EVIL: EVIL})
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "onerror" in page and "<img" not in page and "<script>alert" not in page
    assert "[bold]" in shown(summary_table([tmp_path]))


def test_the_page_refers_to_nothing_outside(tmp_path, write_search):
    write_search(tmp_path)
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    body = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    assert set(re.findall(r"(?:src|href)\s*=\s*[\"']?([^\"' >]*)", body)) == {"data:,"}
    assert "http" not in body and "@import" not in body and "url(" not in body


def test_proposals_are_grouped_once(tmp_path, write_search):
    (run,) = load_runs([write_search(tmp_path)])
    assert run.steps() is run.steps(), "figures ask for it at every step"


def test_no_ledger_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no ledger\.sqlite in or below"):
        write_report([tmp_path], tmp_path / "report.html")


def test_the_report_leaves_a_search_alone(tmp_path, write_search):
    write_search(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.suffix == ".sqlite"}
    write_report([tmp_path / "run"], tmp_path / "report.html")
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644)])
def test_the_page_is_as_private_as_its_folder(tmp_path, write_search, folder_mode, file_mode):
    """A run directory is for the user alone; a page that is written elsewhere is meant to be shown."""
    write_search(tmp_path / "run")
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown").chmod(folder_mode)
    page = write_report([tmp_path / "run"], tmp_path / "shown" / "report.html")
    assert page.stat().st_mode & 0o777 == file_mode


def test_an_inner_run_that_two_searches_share_counts_once(tmp_path, write_search):
    for agent in ("random", "derl"):
        write_search(tmp_path / agent, agent=agent, seed=0, groups=[("g1",)])
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    card = page[page.index("Best programs") :]
    assert "1 run" in card and "2 runs" not in card
