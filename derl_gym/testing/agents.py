"""``check_agent``: does an agent of your own keep what a search relies on?

It is asked and told as a search would do it, in a real environment whose scores are made up from the programs' texts:
nothing is trained, and no run directory is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import derl_gym  # noqa: F401  (registers the ids)
from derl_gym.testing.report import Report
from derl_gym.testing.watched import Broken, MadeUp, Watched, equal, says

STEPS = 4
"""Outer steps of a search that is compared with another."""
CUT = 2
"""Outer steps before the agent is saved."""
METHODS = ("ask", "tell", "save", "load")


def check_agent(agent: Any, env_id: str = "DERL-Arithmetic-v0", group_size: int = 4, **settings: Any) -> Report:
    """Check an agent: what it proposes, that its seed decides it, that it can be saved, and what it survives.

    Its actions must be token ids of the right type and shape, padded with END, and its own array must stay its own; it
    must not change what it is given. Two agents with one seed must propose the same programs, whatever state the global
    generators of ``random``, numpy and torch are in. Saved in the middle of a search and loaded into a fresh agent it
    must go on as before, and it must write no pickle. It must survive groups whose programs are all invalid or have one
    score, scores of -0.0, and a group of one program.

    Args:
        agent: A class of agents, or any ``factory(envs, seed=0)`` that makes a fresh one. A ready agent stands for its
            class with its options.
        env_id: The environment it is made for. No inner run is made in it.
        group_size: Programs per outer step.
        **settings: Other settings of the environment.

    Returns:
        Everything that was found; nothing is raised for a faulty agent.
    """
    report = Report()

    def make(size: int = group_size, seed: int = 0) -> tuple[Any, Any]:
        given: dict[str, Any] = {"outer_steps": 2 * STEPS} | settings
        envs: Any = gym.make_vec(env_id, num_envs=size, **given)
        envs.unwrapped.loop = MadeUp(envs.unwrapped.loop.settings, envs.unwrapped.loop.environment_id)
        with says("it cannot be made"):
            made = _factory(agent)(envs, seed=seed)
        return envs, made

    with _global_generators_restored():
        try:
            whole = _about_proposals(make, report)
            _about_seeds(make, report, whole)
            _about_saving(make, report, whole)
            _about_odd_groups(make, report)
        except Broken as error:  # what comes after would say the same in other words
            report.problems.append(str(error))
    return report


Make = Callable[..., tuple[Any, Any]]


def _about_proposals(make: Make, report: Report) -> list[list[str]]:
    """The first search, looked at from close by; its programs are what the others are compared with."""
    _seed_global_generators(1)
    envs, agent = make()
    _check_face(agent)
    whole = Watched(envs, agent).steps(STEPS)
    flat = [text for step in whole for text in step]
    parse = [text for text in flat if envs.unwrapped.equivalence_key(text) is not None]
    if not parse:
        raise Broken(f"none of its {len(flat)} programs parses: {flat[0]!r}; write actions with self.encode()")
    shown = f"{len(parse)} of which parse, such as {parse[0]!r}"
    report.lines.append(f"{len(flat)} programs in {STEPS} outer steps, {shown}")
    return whole


def _check_face(agent: Any) -> None:
    if missing := [name for name in METHODS if not callable(getattr(agent, name, None))]:
        raise Broken(f"{type(agent).__name__} has no method {', '.join(missing)}: derive it from derl_agents.Agent")
    if not isinstance(getattr(agent, "name", None), str):
        raise Broken(f"{type(agent).__name__}.name must be text: it is written into every checkpoint")
    if getattr(agent, "pending", 0) is not None:
        raise Broken("pending must be None before the first ask(): a search would step what it holds")
    if dataclasses.is_dataclass(options := getattr(agent, "options", None)):
        try:
            json.dumps(dataclasses.asdict(options))  # type: ignore[arg-type]  # an instance
        except (TypeError, ValueError) as error:
            raise Broken(f"its options are not JSON-able, so that no checkpoint can hold them: {error}") from error


def _about_seeds(make: Make, report: Report, whole: list[list[str]]) -> None:
    _seed_global_generators(2)
    again = Watched(*make()).steps(STEPS)
    if again != whole:
        _seed_global_generators(1)
        if Watched(*make()).steps(STEPS) == whole:
            raise Broken(
                "it draws from a global generator (random, numpy.random or torch): the same seed gives "
                f"{_difference(whole, again)}. All randomness must come from self.rng, which is saved with the agent"
            )
        raise Broken(f"two agents with the same seed and the same scores differ: {_difference(whole, again)}")
    differs = Watched(*make(seed=1)).steps(1) != whole[:1]
    report.lines.append("the same seed gives the same programs, " + ("another one others" if differs else "any does"))


def _about_saving(make: Make, report: Report, whole: list[list[str]]) -> None:
    for cut, end in ((0, 1), (CUT, STEPS)):
        when = f"with the programs of outer step {cut + 1} asked" if cut else "before the first ask()"
        envs, agent = make()
        run = Watched(envs, agent)
        before = run.steps(cut)
        if cut:
            run.ask()
        folder = Path(tempfile.mkdtemp())
        try:
            with says(f"save() {when} fails"):
                agent.save(folder)
            if pickles := [path.name for path in sorted(folder.rglob("*")) if path.is_file() and _is_pickle(path)]:
                raise Broken(
                    f"save() writes a pickle, {pickles[0]}, and whoever loads one runs what code it holds: "
                    "write JSON, safetensors or npy"
                )
            _, loaded = make()
            with says(f"load() of what save() wrote {when} fails"):
                loaded.load(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # load() has to have read all of it
        if not equal(loaded.pending, agent.pending):
            raise Broken("load() does not bring back the asked programs: pending differs from the saved agent's")
        after, again = run.steps_beside(loaded, end - cut)
        if before + after != whole[:end]:
            raise Broken(f"save() {when} changes what is proposed afterwards: {_difference(whole, before + after)}")
        if again != after:
            raise Broken(
                f"an agent loaded from what save() wrote {when} goes on otherwise than the one that was saved: "
                f"{_difference(after, again, cut)}. Write everything it remembers in write_state()"
            )
    report.lines.append("saved in the middle of a search and loaded, it goes on as if nothing had happened")


def _about_odd_groups(make: Make, report: Report) -> None:
    runs = []
    for zero in (0.0, -0.0):
        envs, agent = make()
        run = Watched(envs, agent)
        runs.append([])
        for fixed, words in (
            (zero, f"all programs invalid, with score {zero}"),
            (1.0, "all scores equal to 1"),
            (None, "scores as before, after all equal ones"),
        ):
            envs.unwrapped.loop.fixed = fixed
            with _when(f"in an outer step with {words}"):
                runs[-1] += run.steps(1)
    if runs[0] != runs[1]:
        raise Broken(f"scores of -0.0 are not taken for 0.0: {_difference(*runs)}")
    with _when("in a group of one program"):
        Watched(*make(size=1)).steps(2)
    report.lines.append("groups that are all invalid, all equal, or of one program are survived")


def _factory(agent: Any) -> Callable[..., Any]:
    if isinstance(agent, type) or not all(hasattr(agent, name) for name in METHODS):
        return agent
    return lambda envs, seed=0: type(agent)(envs, agent.options, seed=seed)


@contextlib.contextmanager
def _when(what: str) -> Iterator[None]:
    """A problem with when it came in front."""
    try:
        yield
    except Broken as error:
        raise Broken(f"{what}: {error}") from error


def _difference(a: list[list[str]], b: list[list[str]], first: int = 0) -> str:
    for i, (one, other) in enumerate(zip(a, b, strict=False)):
        for left, right in zip(one, other, strict=True):
            if left != right:
                return f"{left!r} and {right!r} in outer step {first + i + 1}"
    return "another number of outer steps"


def _is_pickle(path: Path) -> bool:
    head = path.read_bytes()[:128]
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".pkl") for name in archive.namelist())
    objects = head.startswith(b"\x93NUMPY") and b"'|O'" in head
    return objects or path.suffix in (".pkl", ".pickle") or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05")


def _seed_global_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


@contextlib.contextmanager
def _global_generators_restored() -> Iterator[None]:
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch:
            torch.set_rng_state(states[2])
