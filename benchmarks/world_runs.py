"""Where the time of an inner run in a text world goes: generation, the worlds, the updates; memo on and off.

    python benchmarks/world_runs.py [--workers 1 2 4] [--policy FOLDER] [--data-dir FOLDER] [--out world_runs.json]

Whole GRPO runs through ``derl_gym.inner.train``, generation by Transformers on the CPU. Without --policy the policy is
a small one made here that writes well-formed commands at random, so the worlds are really asked at every turn. Seconds
of the processes' CPU, Java included, so that other work on the machine changes little; loading and evaluation are left
out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import word_policy
from word_policy import SPECIAL
from worlds import cpu_seconds

from derl_gym.inner import train
from derl_gym.inner.episodes import EpisodeTrainer
from derl_gym.tasks import load_task
from derl_gym.tasks.agent import AgentTask
from derl_gym.tasks.alfworld import ALFWorldL0
from derl_gym.tasks.worlds import Turn
from derl_gym.tasks.worlds.alfworld_games import generate

TURNS = 8
REPLIES = {
    "ALFWorld": "look </action>; inventory </action>; go to PLACE NUMBER </action>",
    "ScienceWorld": "look around </action>; inventory </action>; wait </action>; teleport to ROOM </action>",
}
"""What may follow ``<action>``."""
WORDS = {
    "PLACE": ["cabinet", "drawer", "countertop", "shelf", "desk", "fridge"],
    "NUMBER": ["1", "2", "3"],
    "ROOM": ["kitchen", "greenhouse", "workshop", "bathroom", "hallway"],
}


class WithoutMemo(ALFWorldL0):
    """ALFWorld whose engine is used as it comes."""

    @property
    def world(self) -> tuple[str, dict[str, Any]]:
        """See :attr:`AgentTask.world`."""
        reference, options = super().world
        return reference, options | {"memo": False}


class Timed(EpisodeTrainer):
    """Notes what its training costs."""

    spent: dict[str, float] = {}

    @contextlib.contextmanager
    def _noting(self, part: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.spent[part] = self.spent.get(part, 0.0) + time.process_time() - cpu
        self.spent[f"{part}_wall"] = self.spent.get(f"{part}_wall", 0.0) + time.perf_counter() - wall

    def train(self, *arguments: Any, **settings: Any) -> Any:
        """The run, start and evaluation left out."""
        before = cpu_seconds(self._playing.pool)
        with self._noting("training"):
            output = super().train(*arguments, **settings)
        self.spent["worlds"] = cpu_seconds(self._playing.pool) - before
        return output

    def _rollout(self, prompts: list[str], trainer: Any) -> dict[str, list | None]:
        with self._noting("playing"):
            return super()._rollout(prompts, trainer)

    def _sample(self, rows: list[list[int]]) -> Any:
        with self._noting("generation"):
            return super()._sample(rows)


def make_policy(folder: Path, world: str, texts: list[str]) -> str:
    """A Llama of two layers that knows which words may follow a word, and nothing else until it is trained.

    Its layers add nothing to the residual stream, so the logits depend on the last token alone.
    """
    follow = chain(world)
    known = {*follow, *(word for nexts in follow.values() for word in nexts)} - set(SPECIAL)
    texts = [*texts, " ".join(sorted(known))]
    model, ready = word_policy.make_policy(texts, hidden=64, layers=2, context=8192, tied=False)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding = torch.nn.functional.normalize(torch.randn(len(ready), 64))
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.zero_()
        for word, nexts in follow.items():
            for after in nexts:
                model.lm_head.weight[ready.convert_tokens_to_ids(after)] += (
                    5 * embedding[ready.convert_tokens_to_ids(word)]
                )
    model.save_pretrained(folder)
    ready.save_pretrained(folder)
    return str(folder)


def chain(world: str) -> dict[str, set[str]]:
    """Word -> the words that may follow it."""
    follow: dict[str, set[str]] = {}
    for reply in REPLIES[world].split("; "):
        sequence = ["<|assistant|>", "<explore>", "next", "</explore>", "<action>", *reply.split(), "<|end|>"]
        for before, after in zip(sequence, sequence[1:], strict=False):
            for word in WORDS.get(before, [before]):
                follow.setdefault(word, set()).update(WORDS.get(after, [after]))
    return follow


def measured(reference: str, options: dict[str, Any], policy: str, workers: int, inner: dict[str, Any]) -> dict:
    """One inner run: CPU seconds by part, their shares, and episodes per second of the clock while they are played."""
    task = load_task(reference, options)
    config = task.inner.override(**inner, world_workers=workers)
    payload = {
        "task": reference,
        "task_options": options,
        "program": "g1+0.2*g2+0.1*g3",
        "policy": policy,
        "config": dataclasses.asdict(config),
        "seed": 0,
        "train_split": "train",
        "eval_split": None,
    }
    Timed.spent = {}
    with tempfile.TemporaryDirectory() as folder:
        result = train.run(payload, Path(folder))
    spent = Timed.spent
    cpu = {
        "generation": spent["generation"],
        "worlds": spent["worlds"],
        "updates": spent["training"] - spent["playing"],
        "words": spent["playing"] - spent["generation"],
    }
    episodes = config.batch_size * result["steps"]
    return {
        "workers": workers,
        "episodes": episodes,
        "primitive_means": [{name: row[name] for name in ("g1", "g2", "g3", "g4")} for row in result["curve"]],
        "cpu_seconds": cpu,
        "cpu_shares": {name: seconds / sum(cpu.values()) for name, seconds in cpu.items()},
        "seconds_playing": spent["playing_wall"],
        "seconds_generating": spent["generation_wall"],
        "seconds_training": spent["training_wall"],
        "episodes_per_second": episodes / spent["playing_wall"],
    }


def first_messages(task: AgentTask, number: int) -> list[str]:
    """What a policy's words are taken from."""
    with task.open_pool(1) as pool:
        turns = [pool.reset_all({0: example["game"]})[0] for example in task.load("train")[:number]]
    return [task.opening(turn) for turn in turns if isinstance(turn, Turn)]


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="ALFWorld's games; default: where a task would look")
    parser.add_argument("--policy", help="folder of a policy; default: a small one made here")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--worlds", nargs="+", default=["ALFWorld", "ScienceWorld"])
    parser.add_argument("--episodes", type=int, default=16, help="of an update, in groups of four")
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    inner = {
        "steps": arguments.updates,
        "batch_size": arguments.episodes,
        "num_generations": 4,
        "micro_batch_size": 2,
        "gradient_checkpointing": False,
        "max_completion_length": 24,
        "max_turns": TURNS,
        "learning_rate": 1e-5,
        "backend": "transformers",
    }
    train.EpisodeTrainer = Timed  # type: ignore[misc]
    report: dict[str, Any] = {"cores": os.cpu_count(), "load_average_before": os.getloadavg()[0], "turns": TURNS}
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, dict[str, Any]] = {"ALFWorld": {"data_dir": arguments.data_dir}, "ScienceWorld": {}}
        try:
            ALFWorldL0(**options["ALFWorld"]).load("train")
        except FileNotFoundError:
            games = Path(folder, "games")
            generate(games, {"train": 4, "valid_seen": 1})
            options["ALFWorld"] = {"data_dir": str(games), "check_data": False}
        report["alfworld_games"] = "made here" if "check_data" in options["ALFWorld"] else "published"
        for world in arguments.worlds:
            reference = f"derl_gym.tasks.{world.lower()}:{world}L0"
            task: Any = load_task(reference, options[world])
            policy = arguments.policy or make_policy(Path(folder, world), world, first_messages(task, 12))
            variants = (
                {"memo": reference, "no_memo": f"{__name__}:WithoutMemo"} if world == "ALFWorld" else {"": reference}
            )
            for variant, kind in variants.items():
                name = f"{world.lower()}_{variant}".rstrip("_")
                report[name] = []
                for workers in arguments.workers:
                    report[name].append(measured(kind, options[world], policy, workers, inner))
                    print(name, json.dumps(report[name][-1]), flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
