"""The loop of one search: what it returns, and that an interrupted one goes on without asking twice."""

import json
import subprocess
import sys

import numpy as np
import pytest

from derl_agents import AGENTS, Agent, SearchResult, search
from derl_agents.random_search import RandomSearch


class Counting(RandomSearch):
    """Random search that counts its asks and dies at one of its tells."""

    name = "counting"
    asked = 0
    told = 0
    dies_at = None

    def propose(self, observation, info):
        self.asked += 1
        return super().propose(observation, info)

    def learn(self, actions, scores, info):
        if self.steps == self.dies_at:
            raise KeyboardInterrupt
        self.told += 1


def test_result(make_envs):
    envs = make_envs(num_envs=3, outer_steps=4)
    seen = []
    result = search(envs, RandomSearch(envs), seed=5, on_step=lambda *step: seen.append(step))
    assert len(result.programs) == len(result.scores) == 4
    assert all(
        len(programs) == 3 and scores.shape == (3,)
        for programs, scores in zip(result.programs, result.scores, strict=True)
    )
    pairs = [pair for step in zip(result.programs, result.scores, strict=True) for pair in zip(*step, strict=True)]
    assert result.best[1] == max(score for _, score in pairs) and result.best in pairs
    assert result.best_of_last_step[1] == result.scores[-1].max()
    assert result.means == [scores.mean() for scores in result.scores]
    assert [step[0] for step in seen] == [0, 1, 2, 3]
    # The last step's info is that of the step, not of the reset that follows it.
    assert [list(step[3]["program"]) for step in seen] == result.programs
    assert envs.scored == 4


def test_best_takes_the_first_of_equals():
    result = SearchResult([["g1", "g2"], ["g3", "g4"]], [np.array([0.1, 0.9]), np.array([0.9, 0.2])])
    assert result.best == ("g2", 0.9)
    assert result.best_of_last_step == ("g3", 0.9)


@pytest.mark.parametrize("dies_at", [0, 2, 3])
def test_resume_asks_for_no_program_twice(make_envs, dies_at):
    whole_envs = make_envs("whole", num_envs=2, outer_steps=4)
    whole = search(whole_envs, Counting(whole_envs, seed=3), seed=1)

    first = Counting(envs := make_envs("cut", num_envs=2, outer_steps=4), seed=3)
    first.dies_at = dies_at
    with pytest.raises(KeyboardInterrupt):
        search(envs, first, seed=1)
    assert first.asked == dies_at + 1

    second = Counting(envs := make_envs("cut", num_envs=2, outer_steps=4), seed=3)
    resumed = search(envs, second, seed=1)
    assert second.asked == 4 - first.asked
    assert second.told == 4 - dies_at
    assert envs.scored == 3 - dies_at  # what was stepped before the cut is not stepped anew
    assert resumed.programs == whole.programs
    assert np.array_equal(resumed.scores, whole.scores)

    third = Counting(envs := make_envs("cut", num_envs=2, outer_steps=4), seed=3)
    again = search(envs, third, seed=1)
    assert third.asked == envs.scored == 0
    assert again.programs == whole.programs


def test_cut_between_checkpoint_and_step(make_envs):
    """The asked programs are in the checkpoint, so the step that never began is made with them."""
    envs = make_envs(num_envs=2, outer_steps=2)
    agent = Counting(envs, seed=0)
    observation, info = envs.reset(seed=1)
    asked = agent.ask(observation, info)
    with envs.checkpoint() as folder:
        agent.save(folder)
    envs = make_envs(num_envs=2, outer_steps=2)
    result = search(envs, agent := Counting(envs, seed=0), seed=1)
    assert agent.asked == 1
    assert result.programs[0] == [envs.programs.decode(row) for row in asked]


def test_a_cut_checkpoint_leaves_the_one_before(make_envs, monkeypatch):
    envs = make_envs(num_envs=2, outer_steps=3)
    agent = Counting(envs, seed=0)

    def broken(folder):
        if agent.steps == 1:
            (folder / "agent.json").write_text("{")
            raise OSError("disk full")
        Agent.save(agent, folder)

    monkeypatch.setattr(agent, "save", broken)
    with pytest.raises(OSError, match="disk full"):
        search(envs, agent, seed=1)
    envs = make_envs(num_envs=2, outer_steps=3)
    agent = Counting(envs, seed=0)
    assert len(search(envs, agent, seed=1).programs) == 3
    assert agent.asked == 2


def test_agents_by_name():
    learners = ["random", "derl", "derl-elite", "prompted", "maskable_ppo", "genetic", "tpe", "cmaes", "bandit"]
    assert list(AGENTS) == learners
    assert all(AGENTS[name].name == name and issubclass(AGENTS[name], Agent) for name in AGENTS)
    with pytest.raises(KeyError, match="no agent 'dreal'; there are random, derl"):
        AGENTS["dreal"]
    import derl_agents

    assert derl_agents.DERLProposer is AGENTS["derl"]
    with pytest.raises(AttributeError, match="Proposr"):
        _ = derl_agents.Proposr


def test_random_search_needs_no_torch(tmp_path):
    script = f"""
import importlib.util, json, sys
sys.path[:0] = {[path for path in sys.path if path]!r}
spec = importlib.util.spec_from_file_location("synthetic", {__file__.replace("test_search", "conftest")!r})
synthetic = importlib.util.module_from_spec(spec)
spec.loader.exec_module(synthetic)
from derl_agents import AGENTS, search
envs = synthetic.SyntheticEnvs({str(tmp_path)!r}, num_envs=2, outer_steps=2)
search(envs, AGENTS["random"](envs))
heavy = ("torch", "transformers", "openai", "optuna", "cma", "deap", "stable_baselines3")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
