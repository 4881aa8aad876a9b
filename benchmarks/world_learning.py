"""Does GRPO improve a warm-started policy in a text world? ALFWorld's engine, small rooms, a policy made here.

    python benchmarks/world_learning.py [--out FILE] [--quick]

The experts that the policy is warm-started on know where things are, so that it never sees anybody search: it wins when
its first guess is right. What reward programs then make of it is measured on other games, before and after, per inner
seed. Test is not touched.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from derl_gym.report.estimates import estimate
from derl_gym.tasks.alfworld import ALFWorldL0
from derl_gym.tasks.expert import Experts, Row
from derl_gym.tasks.worlds import Turn
from derl_gym.tasks.worlds.alfworld_games import GOALS, generate
from derl_gym.trials.pool import Job, LocalPool

PROGRAMS = ("g1", "(g1+g2+g3+g4)/4")
SEEDS = range(3000, 3003)
GAMES = 1000
"""Of type pick, in rooms with one of each of eight receptacles; the task splits them 8:2."""
HIDDEN, LAYERS = 128, 2
EPOCHS, BATCH, LEARNING_RATE = 7, 8, 2e-3
"""Passes over the experts' episodes as a language model, before one more as a warm start at half the rate."""
WARM_UP = 50
"""Steps in which the learning rate rises."""
INNER: dict[str, Any] = {
    "steps": 30,
    "batch_size": 64,
    "micro_batch_size": None,
    "max_turns": 8,
    "max_completion_length": 32,
    "max_episode_tokens": 1024,
    "learning_rate": 3e-4,
    "beta": 0.0,
    "eval_temperature": 1.0,
    "eval_examples": 100,
    "eval_batch_size": 100,
    "gradient_checkpointing": False,
    "world_workers": 1,
    "backend": "transformers",
}
QUICK = {"steps": 2, "batch_size": 16, "eval_examples": 8}
NOT_SAID = ("go ", "help", "inventory", "look", "examine ")
"""First words of commands that are possible all the time: the policy is not told them at each turn."""


class SmallRooms(ALFWorldL0):
    """ALFWorld with fewer words to the policy than the package's, since tokens are what costs."""

    name = "alfworld-small-rooms"

    def opening(self, turn: Turn) -> str:
        """The task, and what is seen."""
        return f"Task: {turn.task}\n{self.message(turn)}"

    def message(self, turn: Turn) -> str:
        """What came of the last action, and what can be done here beside what can be done everywhere."""
        return f"{turn.observation.strip()}\n{self.choices(turn.admissible)}"

    def choices(self, admissible: Sequence[str]) -> str:
        """Commands that are special here."""
        return "; ".join(command for command in admissible if not command.startswith(NOT_SAID))


def read(policy: str, rows: Sequence[Row], folder: Path, epochs: int) -> str:
    """Train a policy on all words of the episodes, the world's too: that is how it learns to copy names in time."""
    import torch
    from transformers import AutoModelForCausalLM

    from derl_gym.inner.episodes import Conversation
    from derl_gym.inner.evaluate import load_tokenizer
    from derl_gym.inner.warmstart import IGNORED, encode

    tokenizer = load_tokenizer(policy)
    conversation = Conversation(tokenizer, "chat", [int(tokenizer.eos_token_id)])  # type: ignore[arg-type]
    model = AutoModelForCausalLM.from_pretrained(policy)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    rising = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / WARM_UP))
    shuffled = torch.Generator().manual_seed(0)
    episodes = [torch.tensor(encode(row, conversation)[0]) for row in rows]
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(episodes), generator=shuffled).tolist()
        for start in range(0, len(order), BATCH):
            batch = [episodes[i] for i in order[start : start + BATCH]]
            labels = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=IGNORED)
            logits = model(input_ids=labels.clamp(min=0), attention_mask=(labels >= 0).long()).logits
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            rising.step()
            optimiser.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def warm_policy(task: SmallRooms, folder: Path, games: int | None, epochs: int) -> dict[str, Any]:
    """Make the start of all runs, ``folder/warm``; returns what it was made of."""
    from word_policy import make_policy  # torch

    from derl_gym.inner.warmstart import WarmStart, train

    with task.open_pool(1) as pool:
        rows = list(Experts(task, pool, 10, slips=0.15).episodes(task.load("train")[:games]))
    texts = (message["content"] for row in rows for message in row["messages"])
    model, tokenizer = make_policy(texts, HIDDEN, LAYERS, INNER["max_episode_tokens"], tied=True)
    for part in (model, tokenizer):
        part.save_pretrained(folder / "random")
    reader = read(str(folder / "random"), rows, folder / "reader", epochs)
    how = WarmStart(epochs=1, batch_size=BATCH, micro_batch_size=BATCH, learning_rate=LEARNING_RATE / 2, seed=1)
    return train(reader, rows, folder / "warm", how, task.inner.override(**INNER)) | {"epochs_as_language": epochs}


def jobs_of(folder: Path, options: dict[str, Any], inner: dict[str, Any], seeds: Sequence[int]) -> Iterator[Job]:
    """The start's evaluation and a run under every program, seed by seed; a job's id is ``"seed program"``."""
    for seed in seeds:
        for number, program in enumerate(("start", *PROGRAMS)):
            payload = {
                "task": "world_learning:SmallRooms",
                "task_options": options,
                "policy": str(folder / "warm"),
                "config": dataclasses.asdict(SmallRooms.inner.override(**inner)),
                "seed": seed,
                "split": "validation",
            }
            if number:
                payload |= {"program": program, "train_split": "train", "eval_split": payload.pop("split")}
            target = "derl_gym.inner.train:run" if number else "derl_gym.inner.evaluate:run"
            yield Job(f"{seed} {program}", target, payload, folder / "runs" / f"{seed}-{number}", timeout=3600.0)


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file to write")
    parser.add_argument("--quick", action="store_true", help="every step of it in small, no result")
    parser.add_argument("--steps", type=int, default=INNER["steps"], help="updates of a run")
    parser.add_argument("--folder", type=Path, help="where games and policy are kept, to be used again")
    parser.add_argument("--workers", type=int, default=1, help="inner runs at once")
    arguments = parser.parse_args()

    quick = arguments.quick
    inner = INNER | {"steps": arguments.steps} | (QUICK if quick else {})
    seeds = SEEDS[:1] if quick else SEEDS
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        options = {"data_dir": str(folder / "games"), "check_data": False}
        task = SmallRooms(**options)
        if not (folder / "warm.json").exists():
            counts = {"train": 60 if quick else GAMES, "valid_seen": 1, "valid_unseen": 1}
            generate(folder / "games", counts, kinds=["pick"], receptacles=dict.fromkeys(GOALS, 1))
            made = warm_policy(task, folder, 16 if quick else None, 1 if quick else EPOCHS)
            (folder / "warm.json").write_text(json.dumps(made))
        warm = json.loads((folder / "warm.json").read_text())
        print(f"warm start: {warm}", flush=True)
        results: dict[str, dict[int, dict[str, Any]]] = {}
        with LocalPool(workers=arguments.workers) as pool:
            for outcome in pool.run(list(jobs_of(folder, options, inner, seeds))):
                if outcome.result is None:
                    raise SystemExit(f"{outcome.id} failed: {outcome.failure}")
                seed, _, program = outcome.id.partition(" ")
                results.setdefault(program, {})[int(seed)] = outcome.result | {"seconds": outcome.seconds}
                print(f"{100 * outcome.result['score']:.1f} %  {outcome.id}  ({outcome.seconds:.0f} s)", flush=True)
        games = {split: len(task.load(split)) for split in ("train", "validation")}
    report = {
        "games": games,
        "warm_start": warm,
        "inner": inner,
        "seeds": list(seeds),
        "rows": [describe(program, results) for program in ("start", *PROGRAMS)],
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "transformers", "trl", "alfworld")},
        },
    }
    print(summary(report))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def describe(program: str, results: dict[str, dict[int, dict[str, Any]]]) -> dict[str, Any]:
    """A program's validation success over the seeds, its paired difference to the start's, and its learning curve.

    Lists are in the order of the seeds; ``primitive_gains`` are differences as (mean, half-width, seeds).
    """
    runs, start = (dict(sorted(results[name].items())) for name in (program, "start"))
    gains = estimate([runs[seed]["score"] - start[seed]["score"] for seed in runs])
    mean = estimate([run["score"] for run in runs.values()])
    assert mean is not None and gains is not None
    means = [(runs[seed]["primitive_means"], start[seed]["primitive_means"]) for seed in runs]
    by_primitive = zip(*([after - before for after, before in zip(*pair, strict=True)] for pair in means), strict=True)
    curves = [[row["g1"] for row in run.get("curve", [])] for run in runs.values()]
    return {
        "program": program,
        "mean": mean.mean,
        "half_width": mean.half_width,
        "gain": gains.mean,
        "gain_half_width": gains.half_width,
        "scores": [run["score"] for run in runs.values()],
        "primitive_means": [run["primitive_means"] for run in runs.values()],
        "primitive_gains": [estimate(gains) for gains in by_primitive],
        "curve": [sum(step) / len(step) for step in zip(*curves, strict=True)],
        "seconds": [run["seconds"] for run in runs.values()],
    }


def summary(report: dict[str, Any]) -> str:
    """The table that the documentation quotes, in percent."""
    lines = ["", f"{'program':<18} {'success':>14} {'over the start':>16}   rollouts won, first and last four updates"]
    for row in report["rows"]:
        line = f"{row['program']:<18} {_percent(row['mean'], row['half_width'], ''):>14}"
        if curve := row["curve"]:
            first, last = (100 * sum(part) / len(part) for part in (curve[:4], curve[-4:]))
            line += f" {_percent(row['gain'], row['gain_half_width'], '+'):>16}   {first:.0f}, {last:.0f}"
        lines.append(line)
    return "\n".join(lines)


def _percent(mean: float, half_width: float | None, sign: str) -> str:
    return f"{100 * mean:{sign}.1f}" + ("" if half_width is None else f" ± {100 * half_width:.1f}")


if __name__ == "__main__":
    main()
