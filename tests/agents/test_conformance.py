"""What every agent must do, whatever it is: one test per promise of the protocol, over all of them."""

import json
import os
import signal

import numpy as np
import pytest

from derl_agents import AGENTS, search
from derl_gym.testing import check_agent

SMALL = {"cold_start_programs": 64, "cold_start_steps": 5}
CASES = {
    "random": ("random", {}),
    "random-charset": ("random", {"prior": "charset"}),
    "random-proposer": ("random", {"prior": "proposer", **SMALL}),
    "derl": ("derl", SMALL),
    "derl-charset": ("derl", {**SMALL, "mask": "charset"}),
    "derl-named": ("derl", {"model": "TINY", "lr": 1e-3}),
    "derl-named-cold": ("derl", {"model": "TINY", "cold_start_steps": 2, "cold_start_programs": 16}),
    "derl-elite": ("derl-elite", {**SMALL, "warm_up": 1, "mutants": 1, "resamples": 2}),
    "prompted": ("prompted", {"model": "stub"}),
    "maskable_ppo": ("maskable_ppo", {"n_epochs": 2}),
    "genetic": ("genetic", {}),
    "tpe": ("tpe", {"startup": 4}),
    "cmaes": ("cmaes", {}),
    "bandit": ("bandit", {"arms": 6}),
}


NEEDS = {
    **dict.fromkeys(("random", "derl", "derl-elite"), ("torch",)),
    **{"maskable_ppo": ("sb3_contrib",), "genetic": ("deap",), "tpe": ("optuna",), "cmaes": ("cma",)},
}


def test_every_agent_is_covered():
    assert {name for name, _ in CASES.values()} == set(AGENTS)


@pytest.fixture(params=CASES)
def make_agent(request, monkeypatch):
    name, options = CASES[request.param]
    options = dict(options)
    if options.get("model") == "TINY":
        options["model"] = str(request.getfixturevalue("tiny_lm"))
    if name == "prompted":
        server = request.getfixturevalue("stub_server")
        monkeypatch.setenv("OPENAI_API_KEY", "not-a-real-key")
        options |= {"base_url": server.url}
    else:
        for package in NEEDS.get(name, ()) if name != "random" or "prior" in options else ():
            pytest.importorskip(package)
    return lambda envs, seed=0: AGENTS[name](envs, seed=seed, **options)


def run(envs, agent, steps, scores=None):
    """Ask and tell by hand; returns the programs of each step."""
    observation, info = envs.reset(seed=0)
    programs = []
    for _ in range(steps):
        actions = agent.ask(observation, info)
        observation, values, _, _, info = envs.step(actions)
        agent.tell(actions, values if scores is None else scores, info)
        programs.append([envs.programs.decode(row) for row in actions])
    return programs


@pytest.mark.filterwarnings("ignore:the instruction takes .* tokens:UserWarning")
def test_keeps_what_a_search_relies_on(make_agent, request):
    """Types, shapes, seeds, save and load, invalid groups, a group of one: see derl_gym.testing.check_agent."""
    assert check_agent(make_agent, mask="charset" if "charset" in request.node.name else "grammar").problems == []


KILLS = ("after the tell", "before the save", "in the save", "before the step", "after the step")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_search_that_is_killed_ends_as_one_that_was_not(make_envs, make_agent):
    """Killed by signal 9 at each of these places, and taken up again."""
    whole = make_envs("whole", num_envs=3, outer_steps=5)
    search(whole, make_agent(whole, seed=3), seed=5)
    for place in (*KILLS, None):
        envs = make_envs("killed", num_envs=3, outer_steps=5)
        ended = in_a_process_of_its_own(search_and_die, envs, make_agent, place)
        assert ended == (0 if place is None else -signal.SIGKILL), place
    proposed = [(envs.run_dir / "episode-0" / "actions.json").read_text() for envs in (whole, envs)]
    assert len(json.loads(proposed[0])) == 5 and proposed[0] == proposed[1]


def in_a_process_of_its_own(work, *arguments):
    """The exit code of a fork that does this; negative: the signal that killed it."""
    if (child := os.fork()) == 0:
        try:
            work(*arguments)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def search_and_die(envs, make_agent, place):
    """Search; in the first outer step that this process asks for, die at the place."""
    agent = make_agent(envs, seed=3)
    asked = 0

    def at(name, function, after=False):
        def patched(*arguments, **keywords):
            nonlocal asked
            asked += name == "propose"
            if place == name and not after and asked == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*arguments, **keywords)
            if place == name and after and asked == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return patched

    agent.propose = at("propose", agent.propose)
    agent.save = at("before the save", at("in the save", agent.save, after=True))
    envs.step = at("before the step", at("after the step", envs.step, after=True))
    agent.tell = at("after the tell", agent.tell, after=True)
    search(envs, agent, seed=5)


def test_refuses_misuse(make_envs, make_agent, tmp_path):
    envs = make_envs(num_envs=4)
    agent = make_agent(envs)
    with pytest.raises(RuntimeError, match=r"tell\(\) without ask\(\)"):
        agent.tell(np.zeros((4, 32), dtype=np.int64), [0.0] * 4, {})
    actions = agent.ask({}, {})
    with pytest.raises(RuntimeError, match="ask.. was called twice"):
        agent.ask({}, {})
    with pytest.raises(ValueError, match=r"expected 4 scores.*\(3,\)"):
        agent.tell(actions, [0.0] * 3, {})
    with pytest.raises(ValueError, match=r"expected actions of shape \(4, 32\)"):
        agent.tell(actions[:3], [0.0] * 4, {})
    with pytest.raises(ValueError, match="not the programs"):
        agent.tell((actions + 1) % 5, [0.0] * 4, {})
    with pytest.raises(ValueError, match="finite"):
        agent.tell(actions, [0.0, float("nan"), 0.0, 0.0], {})
    agent.tell(actions, [0.0] * 4, {})  # none of the refusals changed anything
    assert agent.steps == 1 and agent.pending is None
    agent.save(tmp_path)
    with pytest.raises(RuntimeError, match="fresh agent"):
        agent.load(tmp_path)


def test_refuses_a_foreign_checkpoint(make_envs, make_agent, tmp_path):
    envs = make_envs(num_envs=4)
    agent = make_agent(envs)
    with pytest.raises(FileNotFoundError, match=r"agent\.json is missing"):
        agent.load(tmp_path)
    agent.save(tmp_path)
    with pytest.raises(ValueError, match="seed: saved 0, now 1"):
        make_agent(envs, seed=1).load(tmp_path)
    state = json.loads((tmp_path / "agent.json").read_text())
    (tmp_path / "agent.json").write_text(json.dumps(state | {"agent": "other"}))
    with pytest.raises(ValueError, match=f"agent 'other', this is '{agent.name}'"):
        make_agent(envs).load(tmp_path)
    option = next(iter(set(state["options"]) - agent.may_change))
    changed = state["options"] | {option: "something else"}
    (tmp_path / "agent.json").write_text(json.dumps(state | {"options": changed}))
    with pytest.raises(ValueError, match=f"{option}: saved 'something else'"):
        make_agent(envs).load(tmp_path)


def test_refuses_a_damaged_checkpoint(make_envs, make_agent, tmp_path):
    envs = make_envs(num_envs=4, outer_steps=20)
    agent = make_agent(envs)
    agent.tell(agent.ask({}, {}), [0.1, 0.4, 0.0, 0.2], {})
    agent.ask({}, {})
    agent.save(tmp_path)
    for file in sorted(tmp_path.iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=f"checkpoint in {tmp_path} is damaged"):
            make_agent(envs).load(tmp_path)
        file.unlink()
        with pytest.raises((ValueError, FileNotFoundError), match=str(tmp_path)):
            make_agent(envs).load(tmp_path)
        file.write_bytes(whole)
    make_agent(envs).load(tmp_path)


def test_refuses_another_program_length(make_envs, make_agent, tmp_path):
    agent = make_agent(make_envs(num_envs=4))
    agent.ask({}, {})
    agent.save(tmp_path)
    with pytest.raises(ValueError, match=r"shape \(4, 32\), this environment takes \(3, 32\)"):
        make_agent(make_envs(num_envs=3)).load(tmp_path)


def test_survives_groups_without_a_signal(make_envs, make_agent):
    envs = make_envs(num_envs=4)
    agent = make_agent(envs)
    run(envs, agent, 2, scores=[0.0] * 4)
    run(envs, agent, 2, scores=[0.5] * 4)
    assert all(np.isfinite(agent.ask({}, {})).ravel())


def test_options_are_documented_plain_data(make_agent, make_envs):
    """Each field has a default, a JSON-able value and a docstring: the command line is made of them."""
    import ast
    import dataclasses
    import inspect
    import textwrap

    cls = type(make_agent(make_envs()))
    json.dumps(dataclasses.asdict(cls.Options()))
    for owner in cls.Options.__mro__[:-1]:
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body
        for field, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant), ast.unparse(field)


def test_refuses_unknown_options_and_single_environments(make_envs, make_agent):
    import gymnasium as gym

    envs = make_envs()
    cls = type(make_agent(envs))
    with pytest.raises(TypeError, match="no option.*'temprature'"):
        cls(envs, temprature=1.0)
    with pytest.raises(TypeError, match=r"options must be a .*Options"):
        cls(envs, {"temperature": 1.0})
    with pytest.raises(TypeError, match="vector environment"):
        cls(gym.make("CartPole-v1"))
