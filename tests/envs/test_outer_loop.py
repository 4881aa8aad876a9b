"""The search itself: one inner run per class, replay, DERL-full's chain of policies, failures that are not scores."""

from __future__ import annotations

import json
import shutil
import sqlite3
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

import derl_gym  # noqa: F401
from derl_gym.envs.identity import policy_fingerprint, trial_seed
from derl_gym.envs.outer_loop import InfrastructureFailure
from derl_gym.trials.ledger import Ledger, LedgerError, ReplayMismatch, RunDirectoryMismatch

TASK = "toy_tasks:Digits"


def make_vec(run_dir: Path, num_envs: int = 4, **settings):
    return gym.make_vec(
        "DERL-Arithmetic-v0",
        num_envs=num_envs,
        **{"task": TASK, "outer_steps": 2, "run_dir": str(run_dir)} | settings,
    )


def encode(envs, *texts: str) -> np.ndarray:
    return np.stack([envs.unwrapped.programs.encode(text) for text in texts])


def rows(run_dir: Path) -> list[tuple]:
    with Ledger(run_dir, readonly=True) as ledger:
        return [
            (r["step"], r["slot"], r["program"], r["status"], r["score"], r["identity"]) for r in ledger.proposals()
        ]


def trials(run_dir: Path) -> list[dict]:
    with Ledger(run_dir, readonly=True) as ledger:
        return ledger.trials()


def test_equal_advantages_are_one_inner_run(tmp_path: Path) -> None:
    envs = make_vec(tmp_path)
    envs.reset(seed=1)
    _, scores, *_, infos = envs.step(encode(envs, "g1", "2*g1+1", "g2", "g1"))
    assert scores[0] == scores[1] == scores[3]
    assert infos["repeated"].tolist() == [False, True, False, True]
    assert len(set(infos["trial"])) == 2 and infos["key"][0] == infos["key"][1] != infos["key"][2]
    assert [trial["program"] for trial in trials(tmp_path)] == ["g1", "g2"]
    with Ledger(tmp_path, readonly=True) as ledger:
        assert [row["cached"] for row in ledger.proposals()] == [False, True, False, True]
    envs.close()


@pytest.mark.parametrize(("cache", "runs"), [("equivalent", 1), ("exact", 2), ("off", 4)])
def test_cache_modes(tmp_path: Path, cache: str, runs: int) -> None:
    envs = make_vec(tmp_path, cache=cache)
    envs.reset(seed=1)
    *_, infos = envs.step(encode(envs, "g1", "3*g1", "g1", "3*g1"))
    assert len(trials(tmp_path)) == runs
    assert infos["repeated"].tolist() == ([False, True, True, True] if cache != "exact" else [False, True, True, True])
    if cache == "off":  # a repeated class gets a fresh seed, in its order
        assert infos["seed"].tolist() == [trial_seed(1, i) for i in range(4)]
    else:
        assert set(infos["seed"]) == {trial_seed(1, 0)}
    envs.close()


def test_a_reward_that_epsilon_damps_is_no_member_of_its_class(tmp_path: Path, caplog) -> None:
    envs = make_vec(tmp_path, num_envs=2)
    envs.reset(seed=1)
    *_, infos = envs.step(encode(envs, "g1", "0.001*g1"))
    assert "0.001*g1 lie 0.001 apart" in caplog.text
    assert not infos["repeated"].any() and len(trials(tmp_path)) == 2
    envs.close()


def test_without_group_standardisation_the_scale_matters(tmp_path: Path) -> None:
    envs = make_vec(tmp_path, num_envs=2, inner={"scale_rewards": "none"})
    envs.reset(seed=1)
    envs.step(encode(envs, "g1", "2*g1"))
    assert len(trials(tmp_path)) == 2
    envs.close()


def test_what_is_wrong_with_a_program_scores_zero_and_says_why(tmp_path: Path) -> None:
    envs = make_vec(tmp_path, num_envs=3)
    envs.reset(seed=1)
    _, scores, *_, infos = envs.step(encode(envs, "g1+", "g1/(g1-g1)", "g1*0"))
    assert infos["status"].tolist() == ["invalid", "invalid", "scored"] and scores[0] == scores[1] == 0
    assert "ends too early" in infos["reason"][0]
    assert "division by zero" in infos["reason"][1]
    assert infos["structure"].tolist() == ["invalid"] * 3
    assert infos["trial"][0] == "" and infos["seed"][0] == -1
    *_, infos = envs.step(encode(envs, "", "1", ")"))
    assert infos["status"].tolist() == ["invalid", "scored", "invalid"]
    assert infos["trial"][1] == trials(tmp_path)[-1]["identity"]
    assert infos["repeated"][1], "a constant is a constant"
    envs.close()


@pytest.mark.slow
def test_scores_depend_on_the_seed_and_on_nothing_else(tmp_path: Path) -> None:
    programs = ["g1", "g2", "g1-g2", "g1*g2"]
    scores = {}
    for name, seed, workers, order in (("a", 1, 1, 1), ("b", 1, 2, -1), ("c", 2, 2, 1)):
        envs = make_vec(tmp_path / name, workers=workers)
        envs.reset(seed=seed)
        _, values, *_ = envs.step(encode(envs, *programs[::order]))
        scores[name] = dict(zip(programs[::order], values.tolist(), strict=True))
        envs.close()
    assert scores["a"] == scores["b"] != scores["c"]
    curves = [
        [trial["result"]["curve"] for trial in sorted(trials(tmp_path / n), key=lambda t: t["program"])] for n in "ab"
    ]
    assert curves[0] == curves[1]


def test_a_run_directory_gives_its_results_back(tmp_path: Path) -> None:
    envs = make_vec(tmp_path, num_envs=2)
    envs.reset(seed=1)
    first = [envs.step(encode(envs, "g1", "g2"))[1].tolist(), envs.step(encode(envs, "g1+g2", "g1+"))[1].tolist()]
    envs.close()
    before = rows(tmp_path), [trial["ended_at"] for trial in trials(tmp_path)]

    envs = make_vec(tmp_path, num_envs=2, workers=2)
    envs.reset(seed=1)
    assert len(envs.unwrapped.recorded_actions()) == 2
    assert envs.step(encode(envs, "g1", "g2"))[1].tolist() == first[0]
    with pytest.raises(ReplayMismatch, match="recorded"):
        envs.step(encode(envs, "g1", "g2"))
    assert envs.step(encode(envs, "g1+g2", "g1+"))[1].tolist() == first[1]
    envs.close()
    assert (rows(tmp_path), [trial["ended_at"] for trial in trials(tmp_path)]) == before

    envs = make_vec(tmp_path, num_envs=2)
    envs.reset(seed=2)
    with pytest.raises(ReplayMismatch, match="seed"):
        envs.step(encode(envs, "g1", "g2"))
    envs.close()
    other = make_vec(tmp_path, num_envs=2, inner={"steps": 3})
    other.reset(seed=1)
    with pytest.raises(RunDirectoryMismatch, match="inner.steps"):
        other.step(encode(other, "g1", "g2"))
    other.close()


def test_scores_are_shared_across_runs_where_asked(tmp_path: Path) -> None:
    for name in ("a", "b"):
        envs = make_vec(tmp_path / name, num_envs=1, cache_dir=str(tmp_path / "shared"))
        envs.reset(seed=1)
        *_, infos = envs.step(encode(envs, "g1"))
        assert infos["status"].tolist() == ["scored"]
        envs.close()
    (first,), (second,) = trials(tmp_path / "a"), trials(tmp_path / "b")
    assert first["score"] == second["score"] and first["pid"] and second["pid"] is None


def test_episodes_of_one_directory_are_told_apart(tmp_path: Path) -> None:
    envs = make_vec(tmp_path, num_envs=1, outer_steps=1)
    envs.reset(seed=1)
    envs.reset(seed=1)  # never stepped: not an episode
    envs.step(encode(envs, "g1"))
    envs.step(encode(envs, "g1"))  # the step that ended the first episode has begun the second
    with Ledger(tmp_path, readonly=True) as ledger:
        assert [row["episode"] for row in ledger.proposals()] == [0, 1]
        assert [row["seed"] for row in ledger.episodes()][0] == 1
    envs.close()


@pytest.mark.slow
def test_derl_full_starts_each_step_from_the_best_policy_of_the_last(tmp_path: Path) -> None:
    envs = make_vec(tmp_path, num_envs=2, outer_steps=3, variant="full")
    envs.reset(seed=1)
    loop = envs.unwrapped.loop
    _, scores, *_, infos = envs.step(encode(envs, "g1", "g2-g1"))
    best = infos["trial"][scores.argmax()]
    assert loop.policy == f"trial:{best}"
    kept = [trial for trial in infos["trial"] if (tmp_path / "trials" / trial / "policy").exists()]
    assert kept == [best], "the losers' policies are thrown away"
    # An all-invalid group is survived: the policy stays.
    *_, infos = envs.step(encode(envs, "g1+", "(g2"))
    assert infos["status"].tolist() == ["invalid"] * 2 and loop.policy == f"trial:{best}"
    # The same program from another policy is another trial.
    *_, infos = envs.step(encode(envs, "g1", "g2-g1"))
    envs.close()
    policies = [trial["policy"] for trial in trials(tmp_path)]
    assert policies == [policy_fingerprint(loop.base_policy)] * 2 + [f"trial:{best}"] * 2


def test_a_hung_run_is_a_failure_and_never_a_score(tmp_path: Path) -> None:
    envs = make_vec(tmp_path, num_envs=1, task="toy_tasks:Hanging", inner={"timeout": 0.5})
    envs.reset(seed=1)
    with pytest.raises(InfrastructureFailure, match="exceeded its limit of 0.5 s"):
        envs.step(encode(envs, "g1"))
    (trial,) = trials(tmp_path)
    assert (trial["status"], trial["score"], trial["attempts"]) == ("failed", None, 2)
    assert rows(tmp_path)[0][3:5] == ("failed", None)
    envs.close()

    envs = make_vec(
        tmp_path / "zero",
        num_envs=1,
        task="toy_tasks:Hanging",
        inner={"timeout": 0.5},
        on_infrastructure_failure="zero",
    )
    envs.reset(seed=1)
    _, scores, *_, infos = envs.step(encode(envs, "g1"))
    assert scores.tolist() == [0.0] and infos["status"].tolist() == ["failed"]
    assert rows(tmp_path / "zero")[0][3:5] == ("failed", None)
    envs.close()


def test_a_time_limit_that_was_too_short_is_raised(tmp_path: Path) -> None:
    short = make_vec(tmp_path, num_envs=1, inner={"timeout": 0.01})
    short.reset(seed=1)
    with pytest.raises(InfrastructureFailure, match=r"limit of 0.01 s; a larger inner.timeout .*trains only the rest"):
        short.step(encode(short, "g1"))
    short.close()
    longer = make_vec(tmp_path, num_envs=1, inner={"timeout": 600.0})
    longer.reset(seed=1)
    *_, infos = longer.step(encode(longer, "g1"))
    assert infos["status"].tolist() == ["scored"] and len(trials(tmp_path)) == 1
    longer.close()


def test_a_mistake_in_the_settings_is_no_bad_luck(tmp_path: Path) -> None:
    envs = make_vec(tmp_path, num_envs=1, task_options={"size": 1})
    envs.reset(seed=1)
    with pytest.raises(InfrastructureFailure, match="ValueError: .*another try ends the same way") as refused:
        envs.step(encode(envs, "g1"))
    assert "derl-gym resume" not in str(refused.value)
    envs.close()


def copied_policy(folder: Path) -> Path:
    from derl_gym.tasks.arithmetic import Arithmetic

    shutil.copytree(Arithmetic().base_policy, folder)
    return folder


def change(policy: Path) -> None:
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(config | {"changed": 1}))


def test_another_base_policy_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    policy = copied_policy(tmp_path / "policy")
    before = policy_fingerprint(str(policy))
    made = [make_vec(tmp_path / "run", num_envs=1, inner={"policy": str(policy)}) for _ in range(3)]
    made[0].reset(seed=1)
    made[0].step(encode(made[0], "g1"))
    made[0].close()
    recorded = rows(tmp_path / "run")
    change(policy)
    after = policy_fingerprint(str(policy))
    made[1].reset(seed=1)
    with pytest.raises(RunDirectoryMismatch, match=f"base_policy: '{before}' there, '{after}' now"):
        made[1].step(encode(made[1], "g1"))
    made[1].close()
    # A ledger that was begun before base policies were recorded: its settled steps refuse another trial untrained.
    with sqlite3.connect(tmp_path / "run" / "ledger.sqlite") as db:
        db.execute("UPDATE meta SET value = json_remove(value, '$.base_policy') WHERE key = 'config'")
    db.close()
    made[2].reset(seed=1)
    with pytest.raises(ReplayMismatch, match=f"starts from: {before} there, {after} now"):
        made[2].step(encode(made[2], "g1"))
    made[2].close()
    assert rows(tmp_path / "run") == recorded and len(trials(tmp_path / "run")) == 1


def test_a_killed_run_is_tried_again_and_its_group_is_kept(tmp_path: Path) -> None:
    once = {"task": "toy_tasks:Dying", "task_options": {"once": str(tmp_path / "mark")}}
    envs = make_vec(tmp_path / "run", num_envs=1, **once)
    envs.reset(seed=1)
    *_, infos = envs.step(encode(envs, "g1"))
    assert infos["status"].tolist() == ["scored"] and trials(tmp_path / "run")[0]["attempts"] == 2
    envs.close()

    envs = make_vec(tmp_path / "always", num_envs=2, task="toy_tasks:Dying")
    envs.reset(seed=1)
    with pytest.raises(InfrastructureFailure, match="killed by signal 9"):
        envs.step(encode(envs, "g1+", "g1"))
    assert [row[3] for row in rows(tmp_path / "always")] == ["invalid", "failed"]
    envs.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"group_size": 0}, "group_size must be a whole number of at least 1, not 0"),
        ({"outer_steps": 0}, "outer_steps"),
        ({"workers": -1}, "workers"),
        ({"variant": "half"}, "variant must be one of base, full, not 'half'"),
        ({"cache": "on"}, "cache must be one of"),
        ({"pool": "cloud"}, "pool must be"),
        ({"inner": {"stepz": 3}}, "unknown inner setting stepz"),
        ({"inner": {"batch_size": 12}}, "multiple of inner.num_generations"),
        ({"inner": None}, "inner must be a dictionary, not None"),
        ({"inner": {"trl": {"a": object()}}}, "settings must be JSON-able"),
        ({"task": None}, "task must be text, not None"),
        ({"keep_policies": "yes"}, "keep_policies must be true or false, not 'yes'"),
        ({"primitives": "g1"}, "primitives must be a list or None, not 'g1'"),
        ({"primitives": ["g9"]}, "g9"),
        ({"primitives": []}, "primitives"),
        ({"flip": ["g7"]}, "cannot flip g7"),
        ({"task": "nowhere:Nothing"}, "no task at 'nowhere:Nothing'"),
        ({"task": "toy_tasks:Path"}, "not a subclass"),
        ({"variant": "full", "cache_dir": "x"}, "cache_dir shares scores"),
        ({"render_mode": "rgb_array"}, "render_mode must be"),
    ],
)
def test_wrong_settings_are_refused_at_once(wrong: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium remarks on the render mode first
        gym.make("DERL-Arithmetic-v0", **{"task": TASK} | wrong)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(TypeError, match="unknown setting outer_step; expected some of .*outer_steps"):
        gym.make("DERL-Arithmetic-v0", outer_step=3)


def test_a_closed_environment_is_not_used_again(tmp_path: Path) -> None:
    envs = make_vec(tmp_path, num_envs=np.int64(2))
    envs.reset(seed=1)
    envs.step(encode(envs, "g1+", "g1+"))
    with pytest.raises(ValueError, match="got object of shape"):
        envs.step([np.zeros(3, int), np.zeros(4, int)])
    with pytest.raises(LedgerError, match="written by another environment or ledger of this very process"):
        make_vec(tmp_path, num_envs=2).unwrapped.recorded_actions()
    envs.close()
    with pytest.raises(ClosedEnvironmentError, match="was closed"):
        envs.step(encode(envs, "g1+", "g1+"))


@pytest.mark.parametrize("seed", ["x", [1, 2], 1.5, -1, 2**63, True])
@pytest.mark.parametrize("make", [gym.make, gym.make_vec])
def test_a_seed_is_one_whole_number(make, seed: object) -> None:
    with pytest.raises(ValueError, match="expected one whole number from 0"):
        make("DERL-Arithmetic-v0").unwrapped.reset(seed=seed)


def test_wrong_actions_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    env = gym.make("DERL-Arithmetic-v0", task=TASK, run_dir=str(tmp_path)).unwrapped
    with pytest.raises(gym.error.ResetNeeded):
        env.step(env.programs.encode("g1"))
    env.reset(seed=1)
    for action, said in (
        (np.zeros(3, int), "shape"),
        (np.zeros(32), "integers"),
        (np.full(32, 99), "lie in"),
        (np.full(32, -1), "lie in"),
        ("g1", "programs.encode"),
    ):
        with pytest.raises(ValueError, match=said):
            env.step(action)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_ablations_change_the_alphabet_and_the_signs(tmp_path: Path) -> None:
    envs = make_vec(tmp_path, num_envs=2, primitives=["g1"], flip=["g2"])
    face = envs.unwrapped
    assert face.programs.grammar.primitives == ("g1",)
    assert "g2" not in face.instruction
    assert face.primitives[1].values == (-1.0, 0.0) and face.primitives[1].function("2", {}) == -1.0
    envs.reset(seed=1)
    with pytest.raises(Exception, match="g2"):
        face.programs.encode("g2")
    assert face.equivalence_key("g2") is None and face.equivalence_key("g1") == face.equivalence_key("5*g1")
    envs.close()


def test_policies_are_told_apart_by_content(tmp_path: Path) -> None:
    from derl_gym.tasks.arithmetic import Arithmetic

    source = Path(Arithmetic().base_policy)
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    assert policy_fingerprint(str(copy)) == policy_fingerprint(str(source))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"changed": 1}))
    assert policy_fingerprint(str(copy)) != policy_fingerprint(str(source))
    assert policy_fingerprint("Qwen/Qwen2.5-3B") == "Qwen/Qwen2.5-3B"
    (copy / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="is no policy"):
        policy_fingerprint(str(copy))
    with pytest.raises(FileNotFoundError, match="no such policy folder"):
        policy_fingerprint(str(tmp_path / "nowhere"))


def test_rendering(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = gym.make("DERL-Arithmetic-v0", task=TASK, run_dir=str(tmp_path / "a"), render_mode="ansi")
    env.reset(seed=1)
    assert env.render() == "no program scored yet"
    env.step(env.unwrapped.programs.encode("g1+"))
    assert "invalid" in env.render() and "g1+" in env.render()
    env.close()
    env = gym.make("DERL-Arithmetic-v0", task=TASK, run_dir=str(tmp_path / "b"), render_mode="human")
    env.reset(seed=1)
    env.step(env.unwrapped.programs.encode("g1+"))
    assert "ends too early" in capsys.readouterr().out
    env.close()
