"""The README's Python blocks run as they stand, and its commands exist."""

import re
import shlex
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "my_package" not in block]
COMMANDS = re.findall(r"^(?:\$ )?(derl-gym .*?)(?:\s+#.*)?$", README, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.strip().splitlines()[-1][:40])
def test_python_blocks_run(block):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_the_task_of_the_readme_is_one():
    (block,) = (block for block in BLOCKS if "class MyTask" in block)
    names = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec"), names)
    task = names["MyTask"]()
    assert [len(task.load(split)) for split in ("train", "validation", "full", "test")] == [80, 20, 100, 20]
    assert task.correct("So. Answer: 8", task.load("full")[7]) and not task.correct("Answer: 81", task.load("full")[7])
    assert task.primitive_values(["Answer: 9"], [task.load("full")[7]]) == [[0.0, 1.0]]


def test_a_task_registered_as_in_the_readme_is_found():
    import gymnasium as gym

    import derl_gym

    derl_gym.register("DERL-MyTask-v0", task="derl_gym.tasks.arithmetic:Arithmetic", outer_steps=8)
    env = gym.make("DERL-MyTask-v0")
    assert env.unwrapped.outer_steps == 8
    env.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, monkeypatch):
    """Parsed by the real command line; what they do is tested in tests/cli."""
    import derl_gym.cli.command as command_module
    from derl_gym.cli import main

    ran = []
    for kind in command_module.Command.__subclasses__():
        monkeypatch.setattr(kind, "run", lambda self: ran.append(self) or 0)
    assert main(shlex.split(command)[1:]) == 0 and len(ran) == 1
