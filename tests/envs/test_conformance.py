"""What Gymnasium, Stable-Baselines3 and their wrappers expect, over every registered id."""

from __future__ import annotations

import gzip
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import world_policies
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FlattenObservation, NormalizeReward, RecordEpisodeStatistics, TimeLimit, TransformReward

import derl_gym
from derl_gym.envs import TextAction, TokenByToken, UnitCube
from derl_gym.tasks.agent import HOW_TO_ANSWER

TINY = {"steps": 1, "batch_size": 16, "eval_examples": 8}
TINY_MATHEMATICS = {
    **{"steps": 1, "batch_size": 4, "num_generations": 2, "eval_examples": 2, "max_prompt_length": 300},
    **{"max_completion_length": 4, "eval_max_completion_length": 4, "max_flops_ratio": None},
}
TINY_WORLD = {
    **{"steps": 1, "batch_size": 2, "num_generations": 2, "eval_examples": 1, "max_turns": 2, "world_workers": 1},
    **{"max_completion_length": 4, "eval_max_completion_length": 4},
}
IDS = sorted(derl_gym.ENVIRONMENTS)
OTHER_LEVELS = [id for id in IDS if id.endswith(("-L1-v0", "-L2-v0"))]
"""They differ from L0 in their lists of games: what checks an environment's face by training programs again and again
does so at L0 alone."""
MATHEMATICS = ("DERL-GSM8K-v0", "DERL-MATH-v0", "DERL-MATH-GSM8K-v0")
SETTINGS: dict[str, dict] = {}
"""By id: settings with which an inner run takes a moment."""
WRAPPERS = [TokenByToken, TextAction, UnitCube]


@pytest.fixture(scope="module")
def few_problems(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first problems of every data set: reading all of them would take longer than training on them."""
    folder = tmp_path_factory.mktemp("data")
    for source in (data_dir / "gsm8k" / "train.jsonl", data_dir / "math" / "train.jsonl.gz"):
        with gzip.open(source, "rt") if source.suffix == ".gz" else source.open() as file:
            lines = [next(file) for _ in range(20)]
        target = folder / source.parent.name / "train.jsonl"
        target.parent.mkdir()
        target.write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def small_policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy with room for the first message of a world's game."""
    return world_policies.make_policy(tmp_path_factory.mktemp("policy"), [HOW_TO_ANSWER], hidden=32, layers=1)


@pytest.fixture(params=IDS)
def any_id(request: pytest.FixtureRequest) -> str:
    """An id with its ``SETTINGS``."""
    if request.param not in SETTINGS:
        SETTINGS[request.param] = _settings(request.param, request)
    return request.param


@pytest.fixture(params=[id for id in IDS if id not in OTHER_LEVELS])
def environment_id(request: pytest.FixtureRequest) -> str:
    """The same without the other levels of the worlds."""
    if request.param not in SETTINGS:
        SETTINGS[request.param] = _settings(request.param, request)
    return request.param


def _settings(id: str, request: pytest.FixtureRequest) -> dict:
    if id == "DERL-Arithmetic-v0":
        return {"inner": TINY}
    if id in MATHEMATICS:
        folder, policy = request.getfixturevalue("few_problems"), request.getfixturevalue("data_dir") / "stories260k"
        inner = TINY_MATHEMATICS | {"policy": str(policy)}
        return {"preset": "smoke", "inner": inner, "data_dir": str(folder), "task_options": {"check_data": False}}
    inner = TINY_WORLD | {"policy": request.getfixturevalue("small_policy")}
    if "ALFWorld" in id:
        folder = request.getfixturevalue("made_games")
        return {"preset": "smoke", "inner": inner, "data_dir": str(folder), "task_options": {"check_data": False}}
    request.getfixturevalue("scienceworld")
    only = ["find-animal", "find-plant"] if id.endswith("-L2-v0") else "find-living-thing"
    return {"preset": "smoke", "inner": inner, "task_options": {"only": only}}


def make(environment_id: str, **settings) -> gym.Env:
    return gym.make(environment_id, **SETTINGS[environment_id] | {"outer_steps": 2, "group_size": 2} | settings)


def test_gymnasium_checks_it_without_a_warning(environment_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make(environment_id)
        check_env(env.unwrapped)
        env.close()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_gymnasium_checks_its_wrappers(environment_id: str, wrapper: type) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # That it is wrapped is the point here.
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version")
        env = wrapper(make(environment_id))
        check_env(env, skip_render_check=True)
        env.close()


def test_stable_baselines_checks_it_without_a_warning(environment_id: str) -> None:
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make(environment_id)
        sb3.check_env(env.unwrapped)
        tokens = TokenByToken(env)
        sb3.check_env(tokens)
        env.close()


def test_the_usual_wrappers_work(environment_id: str) -> None:
    env = make(environment_id)
    programs = env.unwrapped.programs
    wrapped = RecordEpisodeStatistics(
        FlattenObservation(NormalizeReward(TransformReward(TimeLimit(env, 3), lambda reward: 2 * reward)))
    )
    observation, _ = wrapped.reset(seed=1)
    assert observation in wrapped.observation_space
    for step in range(3):
        observation, _, terminated, truncated, info = wrapped.step(programs.encode("g1"))
        assert observation in wrapped.observation_space
        assert not terminated and truncated == (step == 2)
    assert info["episode"]["l"] == 3
    env.close()


@pytest.mark.parametrize("wrapper", [None, *WRAPPERS])
def test_its_spec_rebuilds_it(any_id: str, wrapper: type | None) -> None:
    env = make(any_id, flip=["g2"])
    env = env if wrapper is None else wrapper(env)
    for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
        again = gym.make(spec)
        assert type(again.unwrapped) is type(env.unwrapped)
        assert again.action_space == env.action_space
        assert again.observation_space == env.observation_space
        assert again.unwrapped.loop.settings.flip == ["g2"]
        assert again.unwrapped.loop.settings == env.unwrapped.loop.settings


def test_the_vector_environment_is_made_by_its_entry_point(any_id: str) -> None:
    envs = gym.make_vec(any_id, num_envs=3, **SETTINGS[any_id] | {"outer_steps": 2})
    observation, infos = envs.reset(seed=1)
    assert observation in envs.observation_space
    assert envs.action_space.sample() in envs.action_space
    assert len(infos["instruction"]) == 3
    actions = np.stack([envs.unwrapped.programs.encode(text) for text in ("g1", "g2", "2*g1")])
    for last in (False, True):
        observation, scores, terminated, truncated, infos = envs.step(actions)
        assert observation in envs.observation_space
        assert scores.dtype == np.float64 and scores.shape == (3,)
        assert terminated.tolist() == [last] * 3 and not truncated.any()
        assert infos["program"].tolist() == ["g1", "g2", "2*g1"]
        assert infos["status"].tolist() == ["scored"] * 3
    assert all(final in envs.single_observation_space for final in infos["final_obs"])
    assert infos["final_obs"][0]["progress"] == 1.0 and observation["progress"][0] == 0.0
    envs.close()


def test_its_documentation_names_every_argument_and_info() -> None:
    import dataclasses

    from derl_gym.envs import RewardDesignEnv
    from derl_gym.envs.settings import Scored, Settings

    manual = RewardDesignEnv.__doc__ or ""
    for field in (*dataclasses.fields(Settings), *dataclasses.fields(Scored)):
        if field.name != "score":
            assert f"``{field.name}" in manual, field.name
    for section in ("Description", "Action Space", "Observation Space", "Starting State", "Rewards", "Episode End",
                    "Information", "Arguments", "References", "Version History"):  # fmt: skip
        assert f"## {section}" in manual


@pytest.mark.parametrize("environment", IDS)
def test_making_and_resetting_one_imports_nothing_heavy_and_reads_no_data(environment: str, tmp_path) -> None:
    """The folder of data is empty, so that whoever looked into it would fail."""
    script = (
        "import sys, gymnasium, derl_gym, derl_gym.programs, derl_gym.trials.pool, derl_gym.protocol\n"
        f"env = gymnasium.make({environment!r}, data_dir={str(tmp_path)!r}).unwrapped\n"
        "_, info = env.reset(seed=0)\n"
        "assert env.programs.shape and env.proposer and info['instruction']\n"
        "heavy = {'torch', 'transformers', 'trl', 'vllm', 'datasets', 'pandas', 'sympy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
