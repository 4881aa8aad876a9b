"""The commands that train nothing, and every mistake a user can make: one line, exit code 2."""

import dataclasses
import io
import json
import sys
from typing import Any

import gymnasium as gym
import pytest

import derl_gym
from derl_agents import AGENTS
from derl_gym.cli import main
from derl_gym.cli.agents import descriptions
from derl_gym.cli.command import Settings, make_envs, pairs
from derl_gym.cli.programs import task_of
from derl_gym.cli.search import Plan
from derl_gym.cli.train import paper_rule
from derl_gym.tasks import InnerConfig

ARITHMETIC = "DERL-Arithmetic-v0"


def test_audit_prints_the_analysis(capsys):
    assert main(["audit", "g1*(g2+0.2)*g3"]) == 0
    text = capsys.readouterr().out
    assert "unstable" in text and "from 0 to 1.2" in text and r"\cdot" in text


def test_audit_as_json(capsys):
    assert main(["audit", "-(g1+0.5*g2)", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["structure"] == "invalid" and facts["bounds"] == [-1.5, 0.0] and not facts["monotone_in_g1"]


def test_audit_takes_a_tasks_primitives(capsys):
    assert main(["audit", "g4", "--env", ARITHMETIC]) == 0
    assert main(["audit", "g4", "-k", "3"]) == 1
    assert "'g4' is not a primitive" in capsys.readouterr().err


@pytest.mark.parametrize(
    "program", ["", "g1+", "9**9**9", "((((", "007", "g2g3", "__import__('os')", "g1 if g2 else 0"]
)
def test_no_program_is_one_line_and_exit_code_1(capsys, program):
    assert main(["audit", program]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("derl-gym: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize("columns", ["60", "200"])
def test_envs_lists_every_id_in_two_lines(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["envs"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines[::2]] == list(derl_gym.ENVIRONMENTS)
    assert all(5 < len(line.partition(": ")[2]) <= int(columns) for line in lines[::2])
    assert lines[1] == "    primitives g1, g2, g3, g4; presets none"
    assert set(lines[3::2]) == {"    primitives g1, g2, g3, g4; presets paper, single-gpu, smoke"}
    assert last.startswith("derl-gym envs ENV tells")


@pytest.mark.parametrize("environment", derl_gym.ENVIRONMENTS)
def test_envs_tells_all_of_one(capsys, monkeypatch, environment):
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["envs", environment]) == 0
    text = capsys.readouterr().out
    task = task_of(environment)
    assert text.startswith(f"{environment}: {task.description}\n")
    rows = [line.strip() for line in text.splitlines()[1:] if line.strip()]
    told = {primitive.name: primitive.description for primitive in task.primitives}
    told |= {f"preset {name}": preset.description for name, preset in task.presets.items()}
    assert [row.split("  ")[0] for row in rows] == list(told)
    assert all(row.endswith(f"  {description}") for row, description in zip(rows, told.values(), strict=True))


def test_a_sound_task_has_no_problem(capsys):
    assert main(["envs", ARITHMETIC, "--check"]) == 0
    assert f"{ARITHMETIC}: no problem found" in capsys.readouterr().out


def test_what_is_wrong_with_a_task_is_listed(capsys):
    import toy_ids  # noqa: F401

    assert main(["envs", "toy_ids:DERL-Faulty-v0", "--check"]) == 1
    captured = capsys.readouterr()
    assert "problem: g2 is 0.5 on the output" in captured.out
    assert captured.err == "derl-gym: toy_ids:DERL-Faulty-v0: 10 problems\n"
    assert main(["envs", "--data-dir", "x"]) == 2


@pytest.fixture
def own_data(tmp_path):
    """Sixty sums in GSM8K's format, as an id whose registration names their folder."""
    (tmp_path / "gsm8k").mkdir()
    rows = [{"question": f"What is {n} + 1?", "answer": f"One more than {n}.\n#### {n + 1}"} for n in range(60)]
    (tmp_path / "gsm8k" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    derl_gym.register(
        "DERL-Own-v0", task="derl_gym.tasks.mathematics:GSM8K", data_dir=str(tmp_path), task_options={"split_seed": 5}
    )
    yield tmp_path / "gsm8k" / "train.jsonl"
    gym.registry.pop("DERL-Own-v0")


def test_a_check_reads_what_a_search_would(own_data, capsys, monkeypatch):
    monkeypatch.setenv("DERL_GYM_DATA", "/nowhere")
    assert main(["envs", "DERL-Own-v0", "--check"]) == 1
    assert f"{own_data} has 60 rows, not the 7473" in capsys.readouterr().out
    assert main(["envs", "DERL-Own-v0", "--check", "--task-options", "check_data=False"]) == 0
    out = capsys.readouterr().out
    assert "train: 48 examples\nvalidation: 12 examples\n" in out and f"read from {own_data}\n" in out
    elsewhere = ["envs", "--check", "DERL-Own-v0", "--data-dir", "/elsewhere"]  # ENV comes where it likes
    assert main(elsewhere) == 1 and "expected one of /elsewhere/gsm8k/train" in capsys.readouterr().out


def test_task_options_come_on_top_of_the_registrations(own_data, tmp_path):
    settings = Settings(task_options=("check_data=False",)).to_dict()
    assert settings == {"task_options": {"check_data": False}}
    envs = make_envs("DERL-Own-v0", settings, tmp_path / "run")
    world: Any = envs.unwrapped
    assert world.loop.task_options == {"split_seed": 5, "check_data": False, "data_dir": str(own_data.parents[1])}
    envs.close()


def test_the_settings_of_the_inner_runs_are_listed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["envs", "DERL-GSM8K-v0", "--settings", "--preset", "smoke"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "DERL-GSM8K-v0, inner runs, preset smoke"
    cells = {line.split()[0]: line.split() for line in lines[4:] if line.strip()}
    assert [cells[name][1] for name in ("policy", "steps", "epochs")] == [
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "2",
        "None",
    ]
    assert cells["prompt_style"][1:3] == ["auto", '"chat":'] and set(cells) == {
        f.name for f in dataclasses.fields(InnerConfig)
    }
    assert main(["envs", ARITHMETIC, "--settings"]) == 0
    assert capsys.readouterr().out.startswith(f"{ARITHMETIC}, inner runs\n")


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr("derl_gym.cli.doctor.hub_answers", lambda patience: False)


def doctor(capsys, monkeypatch, code=0):
    """What it says of the ids without a world, by id and preset, and of the worlds' ids."""
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    found = [line.split(": ", 1) for line in lines if line.startswith("DERL-")]
    assert {name.split()[0] for name, _ in found} == set(derl_gym.ENVIRONMENTS)
    worlds = {name: verdict for name, verdict in found if "World" in name}
    return {name: verdict for name, verdict in found if "World" not in name}, worlds


def test_doctor_without_data_network_or_gpu(capsys, monkeypatch, no_hub):
    monkeypatch.delenv("DERL_GYM_DATA", raising=False)
    monkeypatch.setattr("derl_gym.cli.doctor.shutil.which", lambda name: None)
    verdicts, _ = doctor(capsys, monkeypatch)
    assert verdicts.pop(ARITHMETIC) == "can run here"
    assert set(verdicts) == {"DERL-GSM8K-v0", "DERL-MATH-v0", "DERL-MATH-GSM8K-v0"}
    assert all("data" in verdict and "cannot run here" in verdict for verdict in verdicts.values())


def test_doctor_looks_at_data_models_and_gpus_of_every_preset(capsys, monkeypatch, data_dir, no_hub):
    monkeypatch.setattr("derl_gym.cli.doctor.shutil.which", lambda name: None)
    verdicts, _ = doctor(capsys, monkeypatch)
    paper, smoke = (verdicts[f"DERL-MATH-v0 --preset {name}"] for name in ("paper", "smoke"))
    assert "planned for a GPU of 80 GB, here is none" in paper
    assert "the inner policy Qwen/Qwen2.5-3B is not here" in paper
    assert "the proposer Qwen/Qwen2.5-0.5B-Instruct is not here" in paper
    assert "GPU" not in smoke and "the inner policy HuggingFaceTB/SmolLM2-135M-Instruct is not here" in smoke


def test_doctor_counts_on_a_hub_that_answers(capsys, monkeypatch, data_dir):
    monkeypatch.setattr("derl_gym.cli.doctor.hub_answers", lambda patience: True)
    monkeypatch.setattr("derl_gym.cli.doctor._gpus", lambda: ([24.0, 85.5], "two"))
    verdicts, _ = doctor(capsys, monkeypatch)
    assert verdicts["DERL-GSM8K-v0 --preset paper"] == (
        "can run here, fetches the inner policy Qwen/Qwen2.5-1.5B, the proposer Qwen/Qwen2.5-0.5B-Instruct from the hub"
    )
    monkeypatch.setattr("derl_gym.cli.doctor._gpus", lambda: ([24.0], "one"))
    verdicts, _ = doctor(capsys, monkeypatch)
    assert verdicts["DERL-GSM8K-v0 --preset single-gpu"] == (
        "cannot run here: it is planned for a GPU of 80 GB, here are 24 GB"
    )


def test_doctor_fetches_from_a_hub_that_answers_what_the_hub_has(capsys, monkeypatch, tmp_path):
    for name in ("DERL_GYM_DATA", "ALFWORLD_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("derl_gym.cli.doctor.hub_answers", lambda patience: True)
    verdicts, worlds = doctor(capsys, monkeypatch)
    assert verdicts["DERL-GSM8K-v0 --preset smoke"].startswith("can run here, fetches its data, the inner policy")
    for level in ("L0", "L1", "L2"):
        verdict = worlds[f"DERL-ALFWorld-{level}-v0"]
        assert verdict.startswith("cannot run here: ")
        assert f"no ALFWorld games in {tmp_path}/.cache/alfworld: run alfworld-download" in verdict


def test_gpus_are_read_from_nvidia_smi(monkeypatch, tmp_path):
    from derl_gym.cli.doctor import _gpus

    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559'\necho 'NVIDIA L4, 23034'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    sizes, names = _gpus()
    assert [round(size, 1) for size in sizes] == [85.5, 24.2]
    assert names == "NVIDIA H100 80GB HBM3, 86 GB; NVIDIA L4, 24 GB"
    program.write_text("#!/bin/sh\necho broken >&2\nexit 9\n")
    assert _gpus()[0] == [] and "fails" in _gpus()[1]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["search", "DERL-Nope-v0"], "DERL-Nope"),
        (["search", "no_such_module:DERL-Nope-v0"], "no_such_module"),
        (["search", "CartPole-v1"], "no environment of derl_gym"),
        (["search", ARITHMETIC, "--agent", "nobody"], "derl-elite"),
        (["search", ARITHMETIC, "--agent", "nowhere:Agent"], "agent nowhere:Agent: No module named 'nowhere'"),
        (
            ["search", ARITHMETIC, "--agent", "json:dumps"],
            "expected a class derived from derl_agents.Agent in json, not",
        ),
        (["search", ARITHMETIC, "--agent", "own_agents:Nameless"], "the class needs a name = '...'"),
        (["compare", ARITHMETIC, "--agents", "random", "own_agents:Gone"], "derl_agents.Agent in own_agents, not None"),
        (
            ["compare", ARITHMETIC, "--agents", "own_agents:Climber", "--agent-options", "own_agents:Climber=1"],
            "AGENT.KEY",
        ),
        (["search", ARITHMETIC, "--agent", "random", "--agent-options", "lr"], "KEY=VALUE"),
        (["search", ARITHMETIC, "--agent", "random", "--agent-options", "speed=1"], "speed"),
        (["search", ARITHMETIC, "--agent", "random", "--inner", "stepps=1"], "stepps"),
        (["search", ARITHMETIC, "--agent", "random", "--inner", "steps=0"], "at least 1"),
        (["search", ARITHMETIC, "--agent", "random", "--inner", "learning_rate=abc"], "not 'abc'"),
        (["search", ARITHMETIC, "--agent", "random", "--inner", "temperature=-1"], "above 0, not -1"),
        (["search", ARITHMETIC, "--agent", "random", "--inner", "eval_examples=0"], "at least 1 or None, not 0"),
        (["search", ARITHMETIC, "--agent", "random", "--inner", "trl=5"], "a dictionary, not 5"),
        (["search", ARITHMETIC, "--agent", "random", "--inner", "policy=/nowhere"], "/nowhere"),
        (["search", ARITHMETIC, "--agent", "random", "--seed", "-1"], "from 0 to 2**63 - 1, not -1"),
        (["search", ARITHMETIC, "--agent", "random", "--seed", str(2**63)], "from 0 to 2**63 - 1"),
        (["search", ARITHMETIC, "--agent", "random", "--agent-options", "seed=1"], "seed is no option"),
        (["search", ARITHMETIC, "--agent", "random", "--agent-options", "temperature=x"], "not 'x'"),
        (["search", ARITHMETIC, "--agent", "derl", "--agent-options", "lr=abc"], "lr must be a number"),
        (["search", ARITHMETIC, "--agent", "derl", "--agent-options", "beta2=1"], "beta2 must be below 1"),
        (["search", ARITHMETIC, "--agent", "derl-elite", "--agent-options", "imitation_temperature=0"], "above 0"),
        (["audit", "g1", "-k", str(10**9)], "from 1 to 99"),
        (["audit", "g1", "--env", "DERL-Arithmetic"], f"derl_gym has {ARITHMETIC}"),
        (["search", ARITHMETIC, "--agent", "random", "--inner", "steps=1", "steps=2"], "twice"),
        (["search", ARITHMETIC, "--agent", "random", "--outer-steps", "0"], "outer_steps"),
        (["search", ARITHMETIC, "--agent", "random", "--flip", "g9"], "g9"),
        (["compare", ARITHMETIC, "--agents", "random", "nobody"], "nobody"),
        (["compare", ARITHMETIC, "--agents", "random", "random"], "each once"),
        (["compare", ARITHMETIC, "--seeds", "0"], "at least 1"),
        (["compare", ARITHMETIC, "--agents", "random", "--agent-options", "lr=1"], "AGENT.KEY=VALUE"),
        (["score", ARITHMETIC, "g1", "--seeds", "0"], "at least 1"),
        (["train"], "--run DIR"),
        (["train", ARITHMETIC], "--program"),
        (["train", ARITHMETIC, "--program", "g1", "--run", "x"], "--run DIR"),
        (["train", "--run", "nowhere"], "nowhere"),
        (["train", "--run", "x", "--flip", "g2", "--cache-dir", "c"], "from the search: leave out --flip, --cache-dir"),
        (["train", "--run", "x", "--out", "y"], "leave out --out"),
        (["train", ARITHMETIC, "--program", "g1", "--rule", "best"], "goes with --run DIR"),
        (["audit", "g1", "--env", "DERL-MyTask-v0"], "an id of your own package is written my_package:ID"),
        (["resume", "nowhere"], "nowhere"),
        (["analyse", "nowhere"], "there is no ledger in nowhere"),
        (["search", ARITHMETIC, "--preset", "huge"], "no preset 'huge'"),
        (["search", "DERL-GSM8K-v0", "--preset", "huge"], "has paper, single-gpu, smoke"),
        (["envs", "--check", "DERL-Nope-v0"], "DERL-Nope"),
        (["envs", "DERL-Nope-v0"], "DERL-Nope"),
        (["envs", "--check"], "of which environment?"),
        (["envs", ARITHMETIC, "--task-options", "a=1"], "go with ENV --check"),
        (["envs", ARITHMETIC, "--preset", "smoke"], "goes with ENV --settings"),
        (["envs", ARITHMETIC, "--check", "--settings"], "one at a time"),
        (["envs", "--settings", ARITHMETIC, "--preset", "huge"], "no preset 'huge'"),
        (["search", "DERL-GSM8K-v0", "--task-options", "chekc=1"], "chekc"),
        (["train", "--run", "x", "--preset", "smoke"], "from the search: leave out --preset"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, arguments, part):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert part in captured.err and captured.err.startswith("derl-gym: ")
    assert captured.err.count("\n") == 1 and "Traceback" not in captured.err


@pytest.mark.parametrize("flag", [["--outer-steps", "2"], ["--group-size", "2"], ["--cache", "exact"]])
def test_score_has_no_settings_that_it_would_override(capsys, flag):
    with pytest.raises(SystemExit) as stop:
        main(["score", ARITHMETIC, "g1", *flag])
    assert stop.value.code == 2 and flag[0] in capsys.readouterr().err


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"derl-gym {derl_gym.__version__}\n"


def test_agents_are_listed_with_their_options(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["agents"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in AGENTS) and "cold_start_steps" in text
    for name in AGENTS:
        options = AGENTS[name].Options
        assert set(descriptions(options)) >= {field.name for field in dataclasses.fields(options)}


@pytest.mark.parametrize(("agent", "rule"), [("random", "best"), ("derl", "last"), (None, "last")])
def test_the_final_program_is_selected_as_in_the_paper(tmp_path, agent, rule):
    if agent:
        Plan(ARITHMETIC, {}, agent, {}, 0).write(tmp_path)
    assert paper_rule(tmp_path) == rule


def test_a_program_may_begin_with_a_minus_sign(capsys):
    assert main(["audit", "-g1+g2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bounds"] == [-1.0, 1.0]
    assert main(["audit", "-(g1)"]) == 0


def test_an_endless_program_is_not_echoed(capsys):
    assert main(["audit", "g1+" * 5000 + "g1"]) == 1
    message = capsys.readouterr().err
    assert len(message) < 200 and "15002 characters, the limit is 512" in message


def test_a_terminal_that_knows_ascii_alone(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(["audit", "g1+é"]) == 1
    stream.flush()
    assert b"'g1+?' is no reward program" in stream.buffer.getvalue()


def test_debug_raises_the_error_itself():
    with pytest.raises(ValueError, match="-k must be"):
        main(["audit", "g1", "-k", "0", "--debug"])


def test_an_ended_folder_is_not_another_search(tmp_path, capsys):
    (tmp_path / "search.json").write_text('{"environment": "' + ARITHMETIC + '", "settings": {"workers": 2}, '
                                          '"agent": "random", "agent_options": {}, "seed": 0}')  # fmt: skip
    assert main(["search", ARITHMETIC, "--agent", "random", "--seed", "3", "--out", str(tmp_path)]) == 2
    assert "seed 0, not 3" in capsys.readouterr().err
    assert main(["compare", ARITHMETIC, "--agents", "random", "--out", str(tmp_path)]) == 2
    assert "is the run directory of a search" in capsys.readouterr().err
    for edited in ("", "{}", "[1]", '{"environment": 5, "settings": [], "agent": 1, "agent_options": 3, "seed": "x"}'):
        (tmp_path / "search.json").write_text(edited)
        assert main(["resume", str(tmp_path)]) == 2
        assert "search.json is no description of a search" in capsys.readouterr().err


def test_an_ended_comparison_is_not_another_one(tmp_path, capsys):
    description = {"environment": ARITHMETIC, "settings": {}, "agents": ["random"], "agent_options": {}, "seeds": [0]}
    (tmp_path / "compare.json").write_text(json.dumps(description))
    assert main(["compare", ARITHMETIC, "--agents", "random", "derl", "--out", str(tmp_path)]) == 2
    assert "agents ['random'], not ['random', 'derl']" in capsys.readouterr().err
    assert main(["search", ARITHMETIC, "--agent", "random", "--out", str(tmp_path)]) == 2
    assert "holds a comparison" in capsys.readouterr().err
    assert json.loads((tmp_path / "compare.json").read_text()) == description


@pytest.mark.parametrize("command", [["search", "--agent", "random"], ["compare", "--agents", "random"]])
def test_a_file_is_no_run_directory(tmp_path, capsys, command):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main([command[0], ARITHMETIC, *command[1:], "--out", str(out)]) == 2
        assert f"cannot use {out}" in capsys.readouterr().err


def test_what_was_interrupted_before_it_began_is_not_called_resumable(tmp_path, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("derl_gym.cli.search.Plan.run", interrupt)
    assert main(["search", ARITHMETIC, "--agent", "random", "--out", str(tmp_path / "new")]) == 130
    assert capsys.readouterr().err == "derl-gym: interrupted\n"
    (tmp_path / "search.json").touch()
    assert main(["search", ARITHMETIC, "--agent", "random", "--out", str(tmp_path)]) == 130
    assert f"`derl-gym resume {tmp_path}` goes on" in capsys.readouterr().err


def test_a_comparison_is_no_search_but_names_its_own(tmp_path, capsys):
    (tmp_path / "compare.json").touch()
    for command in (["train", "--run"], ["analyse"]):
        assert main([*command, str(tmp_path)]) == 2
        assert "holds a comparison: no search in it has begun yet" in capsys.readouterr().err
    for name in ("random-seed0", "derl-seed0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ledger.sqlite").touch()
    for command in (["train", "--run"], ["analyse"]):
        assert main([*command, str(tmp_path)]) == 2
        named = f"run directories, {tmp_path / 'derl-seed0'}, {tmp_path / 'random-seed0'}\n"
        assert capsys.readouterr().err.endswith(named)


def test_an_endpoint_that_is_gone_says_how_to_go_on(tmp_path, capsys):
    pytest.importorskip("openai")
    options = ["base_url=http://127.0.0.1:1/v1", "retries=0"]
    arguments = ["search", ARITHMETIC, "--agent", "prompted", "--agent-options", *options, "--out", str(tmp_path)]
    assert main(arguments) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert "no reply from http://127.0.0.1:1/v1/" in message
    assert message.endswith(f"`derl-gym resume {tmp_path}` goes on from here")


def test_an_interruption_names_no_earlier_commands_run(tmp_path, capsys, monkeypatch):
    options = ["base_url=http://127.0.0.1:1/v1", "retries=0"]
    main(["search", ARITHMETIC, "--agent", "prompted", "--agent-options", *options, "--out", str(tmp_path)])
    assert "resume" in capsys.readouterr().err

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("derl_gym.cli.agents.descriptions", interrupted)
    assert main(["agents"]) == 130
    assert capsys.readouterr().err == "derl-gym: interrupted\n"


def test_values_are_json_python_or_text():
    given = ["a=1", "b=2e-3", "c=true", "d=None", "e=sgd", "f=[1, 2]", "g=x=y", 'h={"k": 1}', "i="]
    assert pairs(given, "--inner") == {
        **{"a": 1, "b": 2e-3, "c": True, "d": None, "e": "sgd", "f": [1, 2], "g": "x=y", "h": {"k": 1}, "i": ""}
    }


def test_what_is_left_out_stays_as_the_id_says():
    assert Settings().to_dict() == {}
    settings = Settings(outer_steps=3, workers=1, inner=("steps=2",), flip=("g2",), preset="smoke")
    assert settings.to_dict() == {**{"outer_steps": 3, "inner": {"steps": 2}, "flip": ["g2"], "preset": "smoke"}}


def test_a_missing_package_is_said_before_anything_runs(capsys, monkeypatch, tmp_path):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "trl" else real(name))
    assert main(["search", ARITHMETIC, "--agent", "random", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "derl-gym: inner runs need trl: pip install 'derl-gym[train]'\n"
    assert not (tmp_path / "run").exists()
    assert main(["doctor"]) == 1
