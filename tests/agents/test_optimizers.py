"""What each of the optimizers from other libraries does with programs and scores, by itself."""

from __future__ import annotations

import copy
import itertools
import random
import sys

import gymnasium as gym
import numpy as np
import pytest

import derl_gym  # noqa: F401
from derl_agents import AGENTS, search
from derl_gym.envs import TokenByToken
from derl_gym.programs import RewardProgram
from derl_gym.testing.watched import MadeUp

STATES = np.array(list(itertools.product((0.25, 0.5, 1.0), repeat=4)))


def agent_of(name, package):
    pytest.importorskip(package)
    return AGENTS[name]


@pytest.mark.parametrize(
    "name, package", [("genetic", "deap"), ("tpe", "optuna"), ("cmaes", "cma"), ("maskable_ppo", "sb3_contrib")]
)
def test_a_missing_package_is_named(monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"derl_agents.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"the agent {name} needs .*pip install 'derl-gym\[agents\]'"):
        AGENTS[name]


@pytest.mark.parametrize("name, package", [("genetic", "deap"), ("tpe", "optuna"), ("cmaes", "cma"),
                                           ("bandit", "numpy"), ("maskable_ppo", "sb3_contrib")])  # fmt: skip
@pytest.mark.parametrize("length", [1, 6, 32])
def test_programs_are_well_formed_and_no_longer_than_allowed(make_envs, name, package, length):
    envs = make_envs(num_envs=4, outer_steps=4, max_length=length)
    agent = agent_of(name, package)(envs, seed=1)
    for text in sum(search(envs, agent, seed=0).programs, []):
        assert agent.well_formed(text) and np.count_nonzero(envs.programs.encode(text)) <= length


def test_python_s_and_numpy_s_generators_are_left_alone(make_envs):
    before = random.getstate(), np.random.get_state()[1].tolist()
    for name, package in (("genetic", "deap"), ("tpe", "optuna"), ("cmaes", "cma"), ("maskable_ppo", "sb3_contrib")):
        envs = make_envs(name, num_envs=4, outer_steps=3)
        search(envs, agent_of(name, package)(envs), seed=0)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


# -- genetic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, again",
    [
        ("g1", "g1"),
        ("g1-(g2-g3)", "g1-(g2-g3)"),
        ("(g1-g2)-g3", "g1-g2-g3"),
        ("-g1+2*g2", "(-g1)+2*g2"),
        ("-(g1+g2)", "-(g1+g2)"),
        ("(g1+g2)**2/(g3+1)", "(g1+g2)**2/(g3+1)"),
        ("g1/(g2/g3)*0.5", "g1/(g2/g3)*0.5"),
        ("g1**0.5", "g1**0.5"),
    ],
)
def test_a_tree_is_written_with_the_parentheses_it_needs(make_envs, text, again):
    agent = agent_of("genetic", "deap")(make_envs())
    assert agent.text(agent.tree(text)) == again and agent.tree(again) == agent.tree(text)


def test_trees_and_texts_of_the_prior_and_of_children_say_the_same(make_envs):
    agent = agent_of("genetic", "deap")(make_envs(), seed=3)
    sampled = [agent.programs.grammar.sample(agent.rng) for _ in range(300)]
    agent.population = [(text, 0.0) for text in sampled]
    children = list(filter(agent.well_formed, (agent._child() for _ in range(300))))
    assert len(children) > 100
    for text in sampled + children:
        tree = agent.tree(text)
        assert agent.tree(agent.text(tree)) == tree
        with np.errstate(all="ignore"):
            values = [_values(written) for written in (agent.text(tree), text)]
        np.testing.assert_allclose(*values, rtol=1e-12)


def _values(text):
    try:
        return RewardProgram.parse(text)(STATES)
    except ArithmeticError as undefined:
        return np.array([len(str(type(undefined)))])


def test_the_best_of_all_steps_are_the_population_and_no_class_comes_twice(make_envs):
    envs = make_envs(num_envs=6, outer_steps=8)
    agent = agent_of("genetic", "deap")(envs, seed=0, population=5)
    result = search(envs, agent, seed=0)
    pairs = [pair for step in zip(result.programs, result.scores, strict=True) for pair in zip(*step, strict=True)]
    assert agent.population == sorted(pairs, key=lambda pair: -pair[1])[:5]
    keys = [envs.equivalence_key(text) for text, _ in pairs]
    assert len(set(keys)) == len(keys) == 48
    assert np.mean(result.scores[-2:]) > np.mean(result.scores[:2])


# -- tpe ----------------------------------------------------------------------------------------------------


def test_choices_are_written_as_a_program(make_envs):
    agent = agent_of("tpe", "optuna")(make_envs())
    weights = {"g1": "1", "g2": "0.5", "g3": "0", "g4": "-2"}
    assert agent.text({**weights, "bent": "no"}) == "g1+0.5*g2-2*g4"
    bent = {"bent": "g2", "form": "{g}/({h}+1)", "other": "g3"}
    assert agent.text(weights | bent) == "g1+0.5*g2/(g3+1)-2*g4"
    assert agent.text(weights | bent | {"bent": "g3"}) == "g1+0.5*g2-2*g4", "a term that is left out is not bent"
    assert agent.text({**dict.fromkeys(weights, "0"), "bent": "no"}) == "g1"
    short = agent_of("tpe", "optuna")(make_envs(max_length=6))
    assert short.text({**weights, "bent": "no"}) == "g1+g2-g4", "weights go first, from the end"
    assert short.text(weights | bent) == "g1+g2-g4"
    assert agent_of("tpe", "optuna")(make_envs(max_length=4)).text({**weights, "bent": "no"}) == "g1+g2"
    assert "0.1" in agent.weights and "0.1" not in agent_of("tpe", "optuna")(make_envs(max_length=4)).weights


def test_tpe_learns_which_weights_are_good_and_repeats_no_class(make_envs):
    envs = make_envs(num_envs=8, outer_steps=12)
    agent = agent_of("tpe", "optuna")(envs, seed=0)
    result = search(envs, agent, seed=0)
    assert np.mean(result.scores[-4:]) > np.mean(result.scores[:2]) and result.best[1] > 0.8
    programs, scores = sum(result.programs, []), np.concatenate(result.scores)
    keys = [envs.equivalence_key(text) for text in programs]
    assert len(set(keys)) == 96 and agent.known == dict(zip(keys, scores, strict=True))
    assert len(agent.trials) > 96, "choices of a class that has its score are trials too"
    assert all(agent.known[envs.equivalence_key(agent.text(choices))] == score for choices, score in agent.trials)


# -- cmaes --------------------------------------------------------------------------------------------------


def test_small_groups_are_gathered_into_generations(make_envs):
    agent = agent_of("cmaes", "cma")(make_envs(num_envs=3), seed=0)
    told = []
    for step in range(4):
        agent.tell(agent.ask(), [0.1, 0.2, 0.3 + step])
        told.append(agent._run.countiter)
    assert agent._run.popsize == 6 and told == [0, 1, 1, 2]


def test_cmaes_moves_to_where_scores_are_high(make_envs):
    """Slowly: a coordinate says nothing by itself."""
    envs = make_envs(num_envs=8, outer_steps=30, score=lambda text: text.count("g") / 16)
    result = search(envs, agent_of("cmaes", "cma")(envs, seed=0), seed=0)
    assert np.mean(result.scores[-10:]) > 1.5 * np.mean(result.scores[:5])


def test_a_run_that_has_come_to_its_end_is_begun_again_elsewhere(make_envs, tmp_path):
    make = agent_of("cmaes", "cma")
    envs = make_envs(num_envs=8)
    agent = make(envs, seed=0, sigma=1e-12)  # too narrow to move: cma stops it
    for _ in range(6):
        actions = agent.ask()
        agent.tell(actions, np.linspace(0.0, 1.0, 8))
    assert agent.starts > 1 and not np.allclose(agent._run.mean, 0.5)
    agent.save(tmp_path)
    again = make(envs, seed=0, sigma=1e-12)
    again.load(tmp_path)
    assert again.starts == agent.starts and np.array_equal(again.ask(), agent.ask())


# -- bandit -------------------------------------------------------------------------------------------------


def test_the_arm_with_the_highest_bound_is_played(make_envs):
    agent = AGENTS["bandit"](make_envs(num_envs=1), library=["g1", "g2", "2*g1", "g3"], exploration=0.5)
    assert agent.library == ["g1", "g2", "g3"], "2*g1 is g1 again"
    played = []
    for score in (0.5, 0.2, 0.4, 0.5, 0.5):
        actions = agent.ask()
        played.append(agent.programs.decode(actions[0]))
        agent.tell(actions, [score])
    # After one play each: 0.5, 0.2, 0.4, all + 0.5 sqrt(2 ln 3) = 0.741. Then g1 has 0.5 + 0.5 sqrt(ln 4) = 1.089,
    # g3 0.4 + 0.5 sqrt(2 ln 4) = 1.233.
    assert played == ["g1", "g2", "g3", "g1", "g3"]
    assert agent.scores == [[0.5, 0.5], [0.2], [0.4, 0.5]]
    # 5 plays: g1 0.5 + 0.5 sqrt(ln 5), g2 0.2 + 0.5 sqrt(2 ln 5), g3 0.45 + 0.5 sqrt(ln 5).
    assert agent.bounds() == pytest.approx([1.1343, 1.0971, 1.0843], abs=1e-4)


def test_the_library(make_envs):
    arms = AGENTS["bandit"](make_envs(), arms=100).library
    assert arms[:5] == ["g1", "g2", "g3", "g4", "g1+g2"] and arms[14] == "g1+g2+g3+g4"
    assert "g3+0.5*g1" in arms and "g1*(g2+1)" in arms and len(arms) == 15 + 12 + 12
    assert len(AGENTS["bandit"](make_envs()).library) == 24
    with pytest.raises(ValueError, match="library: 'g9' cannot be written here"):
        AGENTS["bandit"](make_envs(), library=["g1", "g9"])


# -- maskable_ppo -------------------------------------------------------------------------------------------


def test_the_update_is_that_of_the_library_s_own_loop(make_envs):
    """The same four programs through MaskablePPO.learn() on TokenByToken, and asked for and told: equal weights."""
    TokenPPO = agent_of("maskable_ppo", "sb3_contrib")
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.callbacks import BaseCallback

    agent = TokenPPO(make_envs(num_envs=4), seed=0, n_epochs=3, batch_size=16)
    shuffles = int(copy.deepcopy(agent.rng).integers(2**63)) % 2**32

    class Watch(BaseCallback):
        programs, scores = [], []

        def _on_step(self):
            info, score = self.locals["infos"][0], float(self.locals["rewards"][0])
            if self.locals["dones"][0]:
                Watch.programs.append(info["program"])
                Watch.scores.append(score)
            return len(Watch.programs) < 4 or self.model.n_steps < 1000

        def _on_rollout_end(self):
            np.random.seed(shuffles)

    def learn(tokens):
        env = gym.make("DERL-Arithmetic-v0", outer_steps=1000, group_size=1)
        world = env.unwrapped
        world.loop = MadeUp(world.loop.settings, world.loop.environment_id)
        settings = {"learning_rate": 1e-3, "batch_size": 16, "n_epochs": 3, "gamma": 1.0, "ent_coef": 0.01}
        model = MaskablePPO("MlpPolicy", TokenByToken(env), n_steps=tokens, device="cpu", seed=6, **settings)
        model.policy.load_state_dict(first)
        model.set_random_seed(6)
        Watch.programs.clear(), Watch.scores.clear()
        return model.learn(total_timesteps=tokens, callback=Watch())

    first = {name: value.clone() for name, value in agent.model.policy.state_dict().items()}
    tokens = learn(1000).num_timesteps  # until the fourth program ends; nothing is learned
    theirs = learn(tokens).policy.state_dict()
    assert len(Watch.programs) == 4 and len(set(Watch.scores)) == 4

    actions = agent.encode(Watch.programs)
    assert tokens == np.minimum((actions != 0).sum(1) + 1, 32).sum()
    agent.learn(actions, np.array(Watch.scores), {})
    ours = agent.model.policy.state_dict()
    assert theirs.keys() == ours.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-6, err_msg=name)
    assert any(not np.allclose(ours[name], first[name], atol=1e-4) for name in ours)


def test_ppo_learns_to_end_early(make_envs):
    envs = make_envs(num_envs=8, outer_steps=12, max_length=12, score=lambda text: float(len(text) <= 2))
    agent = agent_of("maskable_ppo", "sb3_contrib")(envs, seed=0, learning_rate=3e-3)
    result = search(envs, agent, seed=0)
    assert np.mean(result.scores[:2]) < 0.5 and np.mean(result.scores[-2:]) > 0.9 and agent.updates == 12


def test_ppo_without_masks_writes_what_is_no_program(make_envs):
    envs = make_envs(num_envs=4, outer_steps=3)
    agent = agent_of("maskable_ppo", "sb3_contrib")(envs, seed=0, algorithm="ppo", n_epochs=1)
    programs = sum(search(envs, agent, seed=0).programs, [])
    assert sum(map(agent.well_formed, programs)) <= 1 and len(set(programs)) == 12


def test_no_batch_is_of_one_token(make_envs):
    """33 tokens in batches of 16 would leave one, whose advantage has no spread."""
    agent = agent_of("maskable_ppo", "sb3_contrib")(make_envs(num_envs=11), n_epochs=1, batch_size=16)
    agent.learn(agent.encode(["-g1"] * 11), np.linspace(0, 1, 11), {})
    assert agent.model.batch_size == 17 and agent.updates == 1
    assert all(np.isfinite(value.numpy()).all() for value in agent.model.policy.state_dict().values())
