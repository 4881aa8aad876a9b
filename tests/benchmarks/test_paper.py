"""benchmarks/paper: the published numbers, the commands, and every script at smoke scale with real runs."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import world_policies

from derl_gym.protocol import select
from derl_gym.tasks.agent import HOW_TO_ANSWER
from derl_gym.trials.ledger import Ledger

PAPER = Path(__file__).parents[2] / "benchmarks" / "paper"
SCRIPTS = ("table1", "table2", "table4", "figure4", "figure6")
NO_RESULT = "its numbers are no result"


@pytest.fixture(scope="module")
def published():
    names = {"__name__": "published"}
    exec(compile((PAPER / "published.py").read_text(), "published.py", "exec"), names)
    return names


def start(script, *arguments, environment=None, without=()):
    """A script in a process of its own, without an endpoint for the prompted proposer."""
    given = {key: value for key, value in os.environ.items() if key not in ("OPENAI_API_KEY", *without)}
    return subprocess.Popen(
        [sys.executable, str(PAPER / f"{script}.py"), *map(str, arguments)],
        env=given | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(script, *arguments, code=0, **options):
    process = start(script, *arguments, **options)
    out, err = process.communicate(timeout=580)
    assert process.returncode == code, out + err
    return out, err


def records(out):
    """All that the run directories hold of ended runs, with the times at which they ended."""
    found = {}
    for path in sorted(out.rglob("ledger.sqlite")):
        with Ledger(path.parent, readonly=True) as ledger:
            rows = [(row["identity"], row["attempts"], row["ended_at"]) for row in ledger.trials()]
            rows += [(row["programs"], row["seed"], row["again"], row["ended_at"]) for row in ledger.finals()]
            found[path.parent.name] = rows
    return found


def numbers(published):
    """Every number in a published table, as it is printed."""
    if isinstance(published, dict):
        return [text for value in published.values() for text in numbers(value)]
    if isinstance(published, tuple):
        return [text for value in published for text in numbers(value)]
    return [f"{published:.1f}" if round(published, 1) == published else f"{published:.2f}"]


def tables(out):
    """What a script prints after its runs, without the names of files."""
    start = re.search(r"^(Table|Figure) \d", out, re.MULTILINE)
    assert start is not None
    return [line for line in out[start.start() :].splitlines() if not line.startswith("results: ")]


def test_published_success_rates(published):
    """What section 4.4 of the paper says of Table 1."""
    table = published["TABLE_1"]
    assert {len(levels) for worlds in table.values() for levels in worlds.values()} == {3}

    def lead(world, row, other):
        return [round(a - b, 1) for a, b in zip(table[row][world], table[other][world], strict=True)]

    over_rlvmr = {world: lead(world, "DERL-base", "RLVMR") for world in ("ALFWorld", "ScienceWorld")}
    assert over_rlvmr["ALFWorld"][2] == max(over_rlvmr["ALFWorld"]) == 8.7
    assert over_rlvmr["ScienceWorld"][1] == max(over_rlvmr["ScienceWorld"]) == 8.6
    assert table["DERL-full"]["ALFWorld"][0] == 91.8 and table["DERL-full"]["ScienceWorld"][0] == 98.2
    average = lead("ALFWorld", "average(primitives)", "outcome")
    assert max(average[:2]) == 14.3 and average[2] == 0.8
    assert max(lead("ScienceWorld", "DERL-base", "average(primitives)")[:2]) == 11.7
    assert table["DERL-base"]["ALFWorld"][2] > 2 * table["average(primitives)"]["ALFWorld"][2]
    for world in ("ALFWorld", "ScienceWorld"):
        others = [table[row][world] for row in ("outcome", "average(primitives)", "GiGPO", "RLVMR")]
        assert all(best > max(rest) for best, *rest in zip(table["DERL-base"][world], *others, strict=True))
        for row in ("DERL-base", "DERL-full"):
            assert table[row][world][2] > 2 * table["outcome"][world][2]


def test_published_numbers(published):
    table = published["TABLE_2"]
    assert table["MATH"]["average"] == {"gsm8k": 83.6, "math": 54.9}
    assert table["MATH and GSM8K"]["DERL-full"] == {"gsm8k": 87.6, "math": 60.2}
    # What the text says of Table 2: up to 3.9 points more on GSM8K, up to 4.2 fewer on MATH.
    rows = [(rows["outcome"], rows[name]) for rows in table.values() for name in ("outcome+format", "average")]
    assert max(other["gsm8k"] - outcome["gsm8k"] for outcome, other in rows) == pytest.approx(3.9)
    assert max(outcome["math"] - other["math"] for outcome, other in rows) == pytest.approx(4.2)
    # And of Figure 5: removing a primitive costs 1.3 at most, every vocabulary beats the baselines by up to 3.1.
    study = published["TABLE_4"]
    ablated = [study[f"DERL-base, {what}"] for what in ("remove g2", "remove g3", "remove g4", "flip g2")]
    assert round(study["DERL-base"] - min(ablated[:3]), 1) == 1.3
    assert round(max(ablated) - study["outcome"], 1) == 3.1
    assert min(ablated) > study["average"] == 76.12
    # Figure 3: seven steps; random search collapses at step 3, DERL ends where it is best.
    assert {len(curve) for curve in published["FIGURE_3"].values()} == {7}
    assert published["FIGURE_3"]["random search"][3] == 54.58
    assert max(published["FIGURE_3"]["DERL-base"]) == published["FIGURE_3"]["DERL-base"][-1] == 78.3
    figure = published["FIGURE_4"]
    assert {task: {len(curve) for curve in kinds.values()} for task, kinds in figure.items()} == {
        "ALFWorld (L2)": {16},
        "GSM8K": {8},
        "MATH": {8},
    }
    assert figure["MATH"]["test"][0] == 39.6 and figure["GSM8K"]["validation"][5] == 96.8
    assert figure["ALFWorld (L2)"]["test"][12] == 54.9
    shares = published["FIGURE_6"]
    assert all(sum(step) == 100 for step in zip(*shares.values(), strict=True))
    assert shares["unstable"][2] == 37.5 and shares["stable"][8] == 87.5


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_at_paper_scale_lists_the_commands_and_what_they_cost(script, tmp_path):
    out, _ = run(script, "--dry-run", "--out", tmp_path / "runs", "--workers", "8")
    commands = [line for line in out.splitlines() if line.startswith("derl-gym ")]
    assert all("--preset paper" in line or " --run " in line or " analyse " in line for line in commands)
    searches = [line for line in commands if line.startswith("derl-gym search ")]
    assert len(searches) == {"table1": 8, "table2": 4, "table4": 9, "figure4": 3, "figure6": 1}[script]
    assert "inner runs" in out and "GPU hours" in out and " GB\n" in out and NO_RESULT not in out
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_has_the_papers_settings(tmp_path):
    two, _ = run("table2", "--dry-run", "--out", tmp_path)
    for program in ("outcome", "outcome+format", "average"):
        assert f"train DERL-MATH-v0 --program {program} --seeds 3 " in two
    assert "MATH-GSM8K-Qwen2.5-3B-derl-full-7x8" in two and "--variant full" in two
    # Four searches: 64 programs twice, 7 rounds of 8 twice, a reference run for each.
    assert "at most 244 inner runs, 66 final trainings or rounds" in two
    # 3.5 h each; finals of 29 h on MATH and 43.5 h on both, twelve each, and 42 rounds that their cap of 3.5 h ends.
    assert "inner runs: at most 854 GPU hours" in two and "about 1,017 GPU hours on H100s" in two
    small, _ = run("table2", "--dry-run", "--out", tmp_path, "--policy", "own-135M")
    assert "no estimate" in small and "on H100s" not in small
    # 65 kept policies on MATH, 7 of each DERL-full search, 66 final ones: 145 of 3e9 float32 weights.
    assert "about 1,740 GB" in two
    four, _ = run("table4", "--dry-run", "--out", tmp_path)
    assert four.count("--outer-steps 7") == 9 and "prior=proposer" in four and "model=gpt-4o" in four
    assert "--primitives g1 g3 g4" in four and "--flip g2" in four
    assert "--group-size 4" in four and "--group-size 6" in four and "--group-size 8" not in four, "8 is DERL-base"
    one, six = (run(script, "--dry-run", "--out", tmp_path)[0] for script in ("table1", "figure6"))
    figure, _ = run("figure4", "--dry-run", "--out", tmp_path)
    shared = "ALFWorld-L2-Qwen2.5-1.5B-Instruct-derl-base-16x8-kept"
    assert shared in one and shared in six and shared in figure
    assert "MATH-Qwen2.5-3B-derl-base-8x8-kept" in two and "MATH-Qwen2.5-3B-derl-base-8x8-kept" in figure
    # 64 programs of each of both tasks of mathematics and a reference run have a cap of 3.5 h, the world's have none.
    assert "at most 455 GPU hours" in figure and "no estimate of GPU hours for the others" in figure


def test_a_dry_run_of_table_1_has_the_papers_settings(tmp_path):
    out, _ = run("table1", "--dry-run", "--out", tmp_path, "--workers", "8")
    # Searches of 128 programs (ALFWorld) and 40 (ScienceWorld), DERL-full's of 80 and 24, for L0 with L1, and for L2.
    # Four seeds of 36 final policies, of which DERL-full's take 10 and 3 rounds at each of three levels.
    assert "36 run directories" in out and "at most 544 inner runs, 276 final trainings or rounds" in out
    # ALFWorld: 2 x (128 x 40 + 80 x 10) of search; 12 of each row's trainings, three of 150 and three of 100.
    assert "ALFWorld: 20,840 epochs of search and final training, 4.8e+21 FLOPs" in out
    # ScienceWorld: 2 x (40 x 80 + 24 x 33) of search; DERL-full's final trainings take 99.
    assert "ScienceWorld: 16,972 epochs of search and final training, 5.0e+21 FLOPs" in out
    commands = [line for line in out.splitlines() if line.startswith("derl-gym ")]
    warm = [line for line in commands if line.startswith("derl-gym warmstart ")]
    assert [line.split()[2] for line in warm] == [
        f"DERL-{world}-{level}-v0" for world in ("ALFWorld", "ScienceWorld") for level in ("L0", "L2")
    ]
    for line in commands:
        for world in ("ALFWorld", "ScienceWorld"):
            for level in ("L0", "L1", "L2"):
                if f"DERL-{world}-{level}-v0" in line and "warmstart" not in line:
                    seen = "L2" if level == "L2" else "L0"
                    folder = tmp_path / "paper" / f"{world}-{seen}-Qwen2.5-1.5B-Instruct-warm"
                    assert f"policy={folder}/policy" in line, "games that a level tests are not those of its warm start"
    finals = [line for line in commands if " train DERL-ALFWorld-L1-v0 " in line]
    settings = [re.sub(r"--inner policy=\S+|--out .*|--seeds 4 .*--workers 8", "", line).split()[3:] for line in finals]
    assert settings[:4] == [
        ["--program", "outcome", "steps=150"],
        ["--program", "average", "steps=150"],
        ["--program", "outcome", "algorithm=gigpo", "steps=150"],
        ["--program", "outcome", "algorithm=rlvmr"],
    ]
    assert "ALFWorld-L0-Qwen2.5-1.5B-Instruct-derl-base-16x8" in finals[4] and finals[5].count("--variant full") == 1
    part, _ = run("table1", "--dry-run", "--out", tmp_path, "--worlds", "ScienceWorld", "--levels", "L1")
    assert "ALFWorld" not in part and "derl-gym search DERL-ScienceWorld-L0-v0" in part, "whose programs L1 takes"


@pytest.mark.parametrize("scale", ["paper", "single-gpu"])
def test_days_on_gpus_start_only_with_yes(scale, tmp_path):
    out, err = run("table2", "--scale", scale, "--out", tmp_path / "runs", code=1)
    assert "GPU hours" in out and "starts only with --yes" in err
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The folder that the smoke runs share, as a user's would be."""
    return tmp_path_factory.mktemp("paper")


@pytest.mark.slow
def test_what_was_broken_off_goes_on(smoke, data_dir, alfworld):
    """Ctrl-C during the first outer step of the search that Figure 4 needs as well."""
    process = start("figure6", "--scale", "smoke", "--out", smoke, environment={"PYTHONUNBUFFERED": "1"})
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 1/2: "):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "the same command goes on from here" in out, out + err
    (before,) = records(smoke).values()
    assert before, "the first step's runs have ended"
    out, _ = run("figure6", "--scale", "smoke", "--out", smoke)
    (after,) = records(smoke).values()
    assert after[: len(before)] == before, "none of them was run again"


@pytest.mark.slow
@pytest.mark.parametrize("script", ["figure6", "table4", "figure4", "table2"])
def test_every_script_at_smoke_scale(script, smoke, data_dir, published, request):
    if script.startswith("figure"):
        request.getfixturevalue("alfworld")
    out, _ = run(script, "--scale", "smoke", "--out", smoke, "--json", smoke / "copy.json")
    parts = {
        "table2": ["TABLE_2"],
        "table4": ["TABLE_4", "GROUP_SIZES", "FIGURE_3"],
        "figure4": ["FIGURE_4"],
        "figure6": ["FIGURE_6"],
    }[script]
    missing = [text for part in parts for text in numbers(published[part]) if text not in out]
    assert not missing
    assert NO_RESULT in out and "cost of the whole: " in out
    report = json.loads((smoke / "smoke" / f"{script}.json").read_text())
    assert report == json.loads((smoke / "copy.json").read_text())
    assert report["scale"] == "smoke" and report["is_a_result"] is False and report["versions"]["torch"]
    for row in report["rows"]:
        if script.startswith("table") and not row["missing"]:
            benchmarks = {"table2": {"math", "gsm8k"}, "table4": {"gsm8k"}}[script]
            assert set(row["ours"]) == benchmarks and row["n_test"] == 32 * len(benchmarks)
            assert all(0 <= ours["mean"] <= 100 and len(ours["values"]) == 1 for ours in row["ours"].values())
            assert row["final_seconds"] > 0 and row["final_flops"] > 0 and row["programs"]
        assert row["missing"] or row["commands"][0].startswith("derl-gym ")
    before = records(smoke)
    again, _ = run(script, "--scale", "smoke", "--out", smoke)
    assert "at most 0 inner runs, 0 final trainings or rounds and 0 test analyses left" in again
    assert records(smoke) == before and "$ derl-gym" not in again
    assert tables(again) == tables(out)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "level", "names"), [("ALFWorld", "L1", None), ("ScienceWorld", "L2", ["RLVMR"])])
def test_table_1_at_smoke_scale(world, level, names, tmp_path, request, published):
    """Generated games and a policy made here: nothing but the world's package is needed."""
    request.getfixturevalue(world.lower())
    policy = world_policies.make_policy(tmp_path / "made", [HOW_TO_ANSWER], context=512)
    given = ("--scale", "smoke", "--out", tmp_path, "--policy", policy, "--worlds", world, "--levels", level)
    given += ("--rows", *names) if names else ()
    places = {"without": ("DERL_GYM_DATA", "ALFWORLD_DATA"), "environment": {"HOME": str(tmp_path)}}
    out, _ = run("table1", *given, **places)
    report = json.loads((tmp_path / "smoke" / "table1.json").read_text())
    assert [row["row"] for row in report["rows"]] == (names or list(published["TABLE_1"]))
    kinds = {"ALFWorld": {"pick", "two"}, "ScienceWorld": {"find-plant"}}[world]
    for row in report["rows"]:
        name = row["row"]
        assert row["published"] == published["TABLE_1"][name][world][int(level[1])] and str(row["published"]) in out
        found = []
        if name.startswith("DERL"):  # L1 takes what L0's search has selected
            searched = f"{world}-{'L0' if level == 'L1' else level}-made-derl-{name.removeprefix('DERL-')}-1x2"
            with Ledger(tmp_path / "smoke" / searched, readonly=True) as ledger:
                found = select(ledger) if any(trial["status"] == "scored" for trial in ledger.trials()) else []
            assert (row["inner_runs"] > 0) is (level != "L1")
            if not found:
                assert "none of the search's programs" in row["missing"]
                continue
        assert row["programs"] == (found or ["(g1+g2+g3+g4)/4" if name.startswith("average") else "g1"])
        assert set(row["ours"]) == kinds | {"success"} and row["n_test"] == len(kinds)
        assert row["final_seconds"] > 0 and row["commands"][0].startswith("derl-gym warmstart ")
    if world == "ScienceWorld":
        games = (tmp_path / "smoke" / "ScienceWorld-L2-made-warm" / "episodes.jsonl").read_text()
        assert "find-living-thing" in games and "find-plant" not in games, "which L2 is tested on"
    before = records(tmp_path)
    again, _ = run("table1", *given, **places)
    assert "at most 0 inner runs, 0 final trainings or rounds and 0 test analyses left" in again
    assert "warm starts before" not in again and "$ derl-gym" not in again
    assert records(tmp_path) == before and tables(again) == tables(out)


def test_a_world_that_is_not_installed_is_a_reason_and_no_crash(tmp_path):
    """Its packages are hidden: every row says what to install, nothing is run."""
    hidden = "import importlib.util as u; f = u.find_spec; gone = 'alfworld', 'textworld', 'scienceworld'; "
    hidden += "u.find_spec = lambda name, *a: None if name in gone else f(name, *a)"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    out, _ = run("table1", "--scale", "smoke", "--out", tmp_path / "runs", environment={"PYTHONPATH": path})
    assert "ALFWorld needs alfworld, textworld: pip install 'derl-gym[alfworld]'" in out and "$ derl-gym" not in out
    report = json.loads((tmp_path / "runs" / "smoke" / "table1.json").read_text())
    assert {row["missing"].partition(":")[0] for row in report["rows"]} == {
        "ALFWorld needs alfworld, textworld",
        "ScienceWorld needs scienceworld",
    }


@pytest.mark.slow
def test_rows_hold_what_they_say(smoke, data_dir):
    """After the scripts: full training goes through its rounds, ablated searches lack their primitive."""
    if not (smoke / "smoke" / "table2.json").exists() or not (smoke / "smoke" / "table4.json").exists():
        pytest.skip("runs after the scripts")
    table = json.loads((smoke / "smoke" / "table2.json").read_text())
    rows = {(row["trained_on"], row["row"]): row for row in table["rows"]}
    assert len(rows) == 10 and rows["MATH", "average"]["programs"] == ["(g1+g2+g3+g4)/4"]
    for trained_on in ("MATH", "MATH and GSM8K"):
        assert len(rows[trained_on, "DERL-full"]["programs"]) == 2, "one program a round"
        assert rows[trained_on, "DERL-base"]["inner_runs"] > 0 == rows[trained_on, "outcome"]["inner_runs"]
    study = json.loads((smoke / "smoke" / "table4.json").read_text())
    for row in study["rows"]:
        if "remove" in row["row"]:
            assert row["row"][-2:] not in "".join(row["programs"])
    assert any(value is not None for value in study["figure_3"]["DERL-base"]["ours"])
    files = [file for name in ("GSM8K", "MATH") for file in smoke.glob(f"smoke/{name}-*/test_analysis/*/result.json")]
    analysed = [json.loads(file.read_text()) for file in files]
    assert analysed and all(found["n_evaluated"] == 32 * len(found["scores"]) for found in analysed), (
        "as the final policies"
    )
