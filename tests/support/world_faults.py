"""Tasks whose worlds fail in mid-episode, and a policy that is sure to act: for inner runs that go wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import toy_agents
import world_policies

import derl_gym
from derl_gym.tasks.scienceworld import ScienceWorldL0
from derl_gym.tasks.worlds import Turn, WorldPool
from derl_gym.tasks.worlds.scienceworld import ScienceWorld

derl_gym.register("DERL-FaultyCoins-v0", task="world_faults:ImpatientCoins", outer_steps=1, group_size=1)


class ImpatientCoins(toy_agents.FaultyCoins):
    """A call may take a second."""

    def open_pool(self, workers: int) -> WorldPool:
        return WorldPool(*self.world, workers, call_seconds=1.0)


class LosesJava(ScienceWorld):
    """Its Java is killed before the second command of an episode, as often as the file ``times`` says."""

    def __init__(self, times: str) -> None:
        super().__init__()
        self.times = Path(times)

    def reset(self, game_id: str) -> Turn:
        self.commands = 0
        return super().reset(game_id)

    def step(self, command: str) -> Turn:
        self.commands += 1
        if self.commands == 2 and (left := int(self.times.read_text())) > 0:
            self.times.write_text(str(left - 1))
            os.kill(self._env._gateway.java_process.pid, 9)
        return super().step(command)


class ScienceWithoutJava(ScienceWorldL0):
    def __init__(self, data_dir: str | None = None, times: str = "", only: Any = None) -> None:
        super().__init__(data_dir, only=only)
        self.times = times

    @property
    def world(self) -> tuple[str, dict[str, Any]]:
        return "world_faults:LosesJava", {"times": self.times}


def acting_policy(folder: Path, *actions: str) -> str:
    """A Llama that draws one of some actions, in tags, with any message: what follows a word depends on it alone.

    No word may be in two places of the same action, nor be followed by something else in another one.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    follow: dict[str, set[str]] = {}
    for action in actions:
        said = ["<|assistant|>", "<explore>", "next", "</explore>", "<action>", *action.split(), "</action>", "<|end|>"]
        for before, after in zip(said, said[1:], strict=False):
            follow.setdefault(before, set()).add(after)
    known = {*follow, *(word for nexts in follow.values() for word in nexts)} - set(world_policies.SPECIAL)
    world_policies.make_policy(folder, [" ".join(sorted(known))])
    model: Any = AutoModelForCausalLM.from_pretrained(folder, tie_word_embeddings=False)
    number = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids
    torch.manual_seed(0)
    with torch.no_grad():
        for layer in model.model.layers:  # the residual stream stays the last word's embedding
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        words = torch.nn.functional.normalize(torch.randn_like(model.model.embed_tokens.weight))
        heads = torch.zeros_like(words)
        for word, nexts in follow.items():
            for after in nexts:
                heads[number(after)] += 5 * words[number(word)]
        model.model.embed_tokens.weight = torch.nn.Parameter(words)
        model.lm_head.weight = torch.nn.Parameter(heads)
    model.save_pretrained(folder)
    return str(folder)
