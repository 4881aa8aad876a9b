"""What an inner run does to this machine: GRPO steps on a randomly initialised Qwen2.5-0.5B, nothing downloaded.

    python benchmarks/gpu_check.py --out runs/gpu_check.json
    python benchmarks/gpu_check.py --tiny --out runs/gpu_check.json      # the same path on a CPU, in seconds

Prints and writes tokens per second, utilisation and peak memory for every phase of a run through ``derl_gym.inner``:
generating rollouts, scoring them (log-probabilities of the old and the reference policy), rewards, updating,
evaluating, and the rest (loading above all). The policy has the real architecture and vocabulary, but knows
nothing: its rollouts are noise of full length, which is the worst case. ``--inner`` takes any settings of
``InnerConfig`` as JSON, for example '{"lora_rank": 32, "vllm_sleep": true}'.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks import Example, Primitive, Split, Task

QWEN: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "tie_word_embeddings": True,
}
TINY = QWEN | {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1}
PROMPT_LENGTH = {False: 256, True: 8}

SETTINGS = InnerConfig(
    steps=4,
    batch_size=128,
    micro_batch_size=8,
    max_prompt_length=256,
    max_completion_length=512,
    learning_rate=1e-6,
    beta=0.001,
    gradient_checkpointing=True,
    eval_temperature=0.0,
    eval_batch_size=128,
)
TINY_SETTINGS = {"steps": 2, "batch_size": 16, "micro_batch_size": 8, "max_prompt_length": 16}
TINY_SETTINGS |= {"max_completion_length": 16}


class Numbers(Task):
    """Write even digits. The tokens of the policy's vocabulary are numbers, so that anything is an answer."""

    name = "numbers"
    version = "1"
    description = "Write even digits."
    inner: ClassVar[InnerConfig] = SETTINGS
    primitives = (
        Primitive("g1", "the first digit is even", lambda completion, example: float(completion[:1] in set("02468"))),
        Primitive("g2", "share of even digits", lambda c, e: sum(x in "02468" for x in c) / max(1, len(c)), None),
    )

    def __init__(self, data_dir: str | None = None, length: int = 256) -> None:
        super().__init__(data_dir)
        self.length = length

    def load(self, split: Split) -> list[Example]:
        """128 prompts of ``length`` digits, a token each."""
        return [{"prompt": f"{i:03d}".ljust(self.length, "7")} for i in range(128)]

    def correct(self, completion: str, example: Example) -> bool:
        """Whether the first digit is even."""
        return completion[:1] in set("02468")

    base_policy = "made anew for every check"


def make_policy(folder: Path, tiny: bool) -> str:
    """A randomly initialised policy of the architecture, and a tokenizer that knows a number for every token id."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    config = Qwen2Config(**TINY if tiny else QWEN)  # type: ignore[arg-type]
    words = ["<pad>", "<end>", "<unk>", *map(str, range(config.vocab_size - 3))]
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    # Qwen's own class, which splits numbers into digits: transformers would load whatever else is stored as this one.
    tokenizer = Qwen2Tokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], **special)
    tokenizer.save_pretrained(folder)
    config.pad_token_id, config.eos_token_id, config.bos_token_id = 0, 1, None
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)


class Phases:
    """Seconds, tokens, memory and utilisation by phase; an inner phase interrupts the one around it."""

    def __init__(self) -> None:
        import torch

        self.gpu = torch.cuda.is_available()
        self.cuda: Any = torch.cuda
        self.stack = ["rest"]
        self.since = time.perf_counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.tokens: dict[str, int] = defaultdict(int)
        self.peak: dict[str, int] = defaultdict(int)
        self.busy: dict[str, list[float]] = defaultdict(list)

    def switch(self) -> None:
        """Charge the time since the last switch to the phase that ends or is interrupted."""
        phase = self.stack[-1]
        if self.gpu:
            self.cuda.synchronize()
            self.peak[phase] = max(self.peak[phase], self.cuda.max_memory_allocated())
            self.cuda.reset_peak_memory_stats()
        now = time.perf_counter()
        self.seconds[phase] += now - self.since
        self.since = now

    @contextlib.contextmanager
    def phase(self, name: str):
        """A phase."""
        self.switch()
        self.stack.append(name)
        try:
            yield
        finally:
            self.switch()
            self.stack.pop()

    def watch(self, owner: Any, name: str, phase: str, tokens: Any = None) -> None:
        """Make ``owner.name`` a phase; ``tokens(arguments, result)`` counts what it worked on."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                result = function(*args, **kwargs)
            self.tokens[phase] += tokens(args, result) if tokens else 0
            return result

        setattr(owner, name, watched)

    def sample(self) -> subprocess.Popen[str] | None:
        """Ask ``nvidia-smi`` five times a second how busy the GPU is; ``None`` without one."""
        if not self.gpu:
            return None
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200", "-i", "0"]
        process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)

        def read() -> None:
            for line in process.stdout or ():
                if line.strip().isdecimal():
                    self.busy[self.stack[-1]].append(float(line) / 100)

        threading.Thread(target=read, daemon=True).start()
        return process

    def report(self) -> dict[str, dict[str, Any]]:
        """By phase; what was not measured (utilisation and memory without a GPU) is ``None``."""
        return {
            name: {
                "seconds": round(seconds, 3),
                "tokens": self.tokens[name] or None,
                "tokens_per_second": round(self.tokens[name] / seconds, 1) if self.tokens[name] else None,
                "utilisation": round(sum(busy) / len(busy), 3) if (busy := self.busy[name]) else None,
                "peak_gpu_memory_gib": round(self.peak[name] / 2**30, 2) if self.gpu else None,
            }
            for name, seconds in self.seconds.items()
        }


def measure(config: InnerConfig, tiny: bool) -> dict[str, Any]:
    """One inner run in this process, measured."""
    import torch

    from derl_gym.inner import train

    phases = Phases()
    trainer = train.GRPOTrainer
    phases.watch(
        trainer, "_generate_single_turn", "generate", lambda args, result: sum(map(len, args[1])) + _count(result[0])
    )
    phases.watch(trainer, "_generate_and_score_completions", "score")
    phases.watch(trainer, "_calculate_rewards", "rewards")
    phases.watch(trainer, "training_step", "update")
    phases.watch(train, "evaluate", "evaluate", lambda args, result: result["tokens"])
    sampler = phases.sample()
    with tempfile.TemporaryDirectory() as folder:
        payload = {
            "task": "gpu_check:Numbers",
            "task_options": {"length": PROMPT_LENGTH[tiny]},
            "program": "g1+g2",
            "policy": make_policy(Path(folder) / "policy", tiny),
            "config": dataclasses.asdict(config),
            "seed": 0,
            "train_split": "train",
            "eval_split": "validation",
            "save_policy": False,
        }
        result = train.run(payload, Path(folder))
    phases.switch()
    if sampler is not None:
        sampler.terminate()
    for phase in ("score", "update"):  # they work on what was generated
        phases.tokens[phase] = phases.tokens["generate"]
    training = result["flops"] - result["eval_flops"]
    return {
        "device": torch.cuda.get_device_name(0) if phases.gpu else platform.processor() or platform.machine(),
        "gpu": phases.gpu,
        "tiny": tiny,
        "config": payload["config"],
        **{key: result[key] for key in ("backend", "steps", "tokens", "flops", "train_seconds", "eval_seconds")},
        "training_flops_per_second": training / result["train_seconds"],
        "sampling_logp_difference": result["sampling_logp_difference"],
        "peak_process_memory_gib": round(result["peak_memory"] / 2**30, 2),
        "phases": phases.report(),
    }


def _count(completions: Any) -> int:
    return sum(map(len, completions))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--tiny", action="store_true", help="two small layers, for a CPU")
    parser.add_argument("--inner", type=json.loads, default={}, help="InnerConfig settings as JSON")
    arguments = parser.parse_args()
    config = SETTINGS.override(**(TINY_SETTINGS if arguments.tiny else {}) | arguments.inner)
    if config.gpus > 1:
        sys.exit("gpu_check measures one process: inner.gpus must be 1")
    measured = measure(config, arguments.tiny)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(measured, indent=1) + "\n")
    print(f"{measured['device']}, {measured['backend']}, {measured['steps']} steps, {measured['tokens']} tokens")
    for name, row in measured["phases"].items():
        cells = [f"{key} {value}" for key, value in row.items() if value is not None]
        print(f"  {name:9} {', '.join(cells)}")
    if not measured["gpu"]:
        print("There is no GPU here: this shows that the path works, not how fast it is.")


if __name__ == "__main__":
    main()
