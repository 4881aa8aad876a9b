"""What the environment costs on top of the training it runs, as ratios measured in one run.

    python benchmarks/overhead.py --out benchmarks/results/overhead.json

Four lines: an inner run through the environment against the same TRL run written as a bare script; two workers
against one; import and gym.make against importing gymnasium; a program's rewards as a share of a GRPO step. The
masks' and the parser's times are in programs.py. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np

import derl_gym  # noqa: F401
from derl_gym.envs.identity import trial_seed
from derl_gym.trials.ledger import Ledger

ENVIRONMENT = "DERL-Arithmetic-v0"
PROGRAM = "g1+g2+g4"
DIFFERENT = ["g1", "g2+g4", "g1+g2+g4", "2*g1+g4", "g1-g3", "g4", "3*g1+g2", "g1+g4-g3"]


def bare_run(seed: int) -> float:
    """The inner run as anybody would write it with TRL alone; returns the validation score."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, set_seed
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from derl_gym.tasks.arithmetic import Arithmetic

    task = Arithmetic()
    config = task.inner
    train, validation = task.load("train"), task.load("validation")
    g1, g2, _, g4 = (primitive.function for primitive in task.primitives)

    def reward(completions: list[str], example_index: list[int], **_: Any) -> list[float | None]:
        pairs = zip(completions, (train[i] for i in example_index), strict=True)
        return [g1(text, example) + g2(text, example) + g4(text, example) for text, example in pairs]

    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(task.base_policy, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(task.base_policy, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            seed=seed,
            data_seed=seed,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            gradient_checkpointing=False,
            max_steps=config.steps,
            per_device_train_batch_size=config.batch_size,
            num_generations=config.num_generations,
            max_completion_length=config.max_completion_length,
            learning_rate=config.learning_rate,
            lr_scheduler_type=config.lr_scheduler,
            optim=config.optimizer,
            adam_epsilon=config.adam_epsilon,
            max_grad_norm=config.max_grad_norm,
            temperature=config.temperature,
            beta=config.beta,
            loss_type=config.loss_type,
            scale_rewards=config.scale_rewards,
            **config.trl,
        ),
        train_dataset=Dataset.from_dict({"prompt": [e["prompt"] for e in train], "example_index": range(len(train))}),
        processing_class=tokenizer,
    )
    trainer.train()
    sampling = config.eval_temperature > 0
    settings = GenerationConfig(
        max_new_tokens=config.max_completion_length,
        do_sample=sampling,
        temperature=config.eval_temperature if sampling else None,
        top_k=0 if sampling else None,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model.eval()
    solved = 0
    for start in range(0, len(validation), config.eval_batch_size):
        part = validation[start : start + config.eval_batch_size]
        batch = tokenizer([e["prompt"] for e in part], return_tensors="pt", padding=True)
        with torch.inference_mode():
            output = model.generate(  # type: ignore[operator]
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], generation_config=settings
            )
        texts = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        solved += sum(task.correct(text, example) for text, example in zip(texts, part, strict=True))
    return solved / len(validation)


def seconds(call: Callable[[], Any]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def inner_run_overhead(pairs: int, folder: Path) -> dict[str, Any]:
    """Alternate the bare run, imports excluded, with a step of a warm environment; same seeds, same work."""
    envs: Any = gym.make_vec(ENVIRONMENT, num_envs=1, outer_steps=pairs + 1, cache="off", run_dir=str(folder / "one"))
    envs.reset(seed=0)
    action = envs.unwrapped.programs.encode(PROGRAM)[None]
    envs.step(action)  # starts the pool's server and loads torch there
    bare_run(trial_seed(0, 0))  # and here
    bare, ours = [], []
    for pair in range(1, pairs + 1):
        bare.append(seconds(lambda pair=pair: bare_run(trial_seed(0, pair))))
        ours.append(seconds(lambda: envs.step(action)))
    envs.close()
    with Ledger(folder / "one", readonly=True) as ledger:
        results = [trial["result"] for trial in ledger.trials()][1:]
    return {
        "bare_seconds": bare,
        "environment_seconds": ours,
        "ratio": statistics.median(ours) / statistics.median(bare),
        "median_of_paired_ratios": statistics.median(o / b for o, b in zip(ours, bare, strict=True)),
        "peak_memory_mb": max(result["peak_memory"] for result in results) / 1e6,
    }


def workers_speedup(repeats: int, folder: Path) -> dict[str, Any]:
    """A step of eight different programs with one worker and with two, both warm."""
    times: dict[int, list[float]] = {1: [], 2: []}
    environments: dict[int, Any] = {}
    for workers in times:
        envs: Any = gym.make_vec(
            ENVIRONMENT, num_envs=8, outer_steps=repeats + 1, cache="off", workers=workers,
            run_dir=str(folder / f"workers-{workers}"),
        )  # fmt: skip
        envs.reset(seed=0)
        environments[workers] = envs
    actions = np.stack([environments[1].unwrapped.programs.encode(text) for text in DIFFERENT])
    for repeat in range(repeats + 1):
        for workers, envs in environments.items():
            spent = seconds(lambda envs=envs: envs.step(actions))
            if repeat:
                times[workers].append(spent)
    for envs in environments.values():
        envs.close()
    return {
        "one_worker_seconds": times[1],
        "two_workers_seconds": times[2],
        "speedup": statistics.median(times[1]) / statistics.median(times[2]),
    }


def import_time(repeats: int) -> dict[str, Any]:
    """Seconds that derl_gym and gym.make add to importing gymnasium, each in a fresh interpreter."""
    script = (
        "import time; t0 = time.perf_counter(); import gymnasium; t1 = time.perf_counter(); import derl_gym\n"
        f"gymnasium.make({ENVIRONMENT!r}); t2 = time.perf_counter(); import sys\n"
        "print(t1 - t0, t2 - t1, 'torch' in sys.modules)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(repeats)
    ]
    base, added = ([float(run[i]) for run in runs] for i in (0, 1))
    return {
        "gymnasium_seconds": statistics.median(base),
        "added_seconds": statistics.median(added),
        "ratio": statistics.median(added) / statistics.median(base),
        "torch_imported": any(run[2] == "True" for run in runs),
    }


def reward_share(folder: Path) -> dict[str, Any]:
    """A program's rewards for 4,096 rollouts, against one optimiser step of the inner run measured above."""
    from derl_gym.programs import RewardProgram

    with Ledger(folder / "one", readonly=True) as ledger:
        trained = [trial["result"] for trial in ledger.trials()][1:]
    step = statistics.median(result["train_seconds"] / result["steps"] for result in trained)
    program = RewardProgram.parse("g1+(g2*(g3/2))-(g4/3)", k=4)
    values = np.random.default_rng(0).integers(0, 2, (4096, 4)).astype(float)
    spent = statistics.median(seconds(lambda: program(values)) for _ in range(200))
    return {"rewards_4096_seconds": spent, "grpo_step_seconds": step, "share_of_step": spent / step}


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = {"import": import_time(7), "inner_run": inner_run_overhead(arguments.pairs, folder)}
        report["rewards"] = reward_share(folder)
        report["workers"] = workers_speedup(3, folder)
    lines = [
        ("inner run through the environment / bare TRL script", report["inner_run"]["ratio"], "<= 1.05"),
        ("two workers / one, 8 programs", report["workers"]["speedup"], ">= 1.7"),
        ("seconds that import + gym.make add", report["import"]["added_seconds"], "< 0.1"),
        ("rewards of 4,096 rollouts / one GRPO step", report["rewards"]["share_of_step"], "< 0.01"),
        (
            "seconds of one inner run (environment)",
            statistics.median(report["inner_run"]["environment_seconds"]),
            "<= 5",
        ),
        ("peak memory of one inner run, MB", report["inner_run"]["peak_memory_mb"], "<= 700"),
    ]
    for name, value, aim in lines:
        print(f"{name:<55} {value:9.4f}   (aim {aim})")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
