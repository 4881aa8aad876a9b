"""Build the base policy of DERL-Arithmetic: a Llama of 133 thousand parameters, taught to add, then to be sloppy.

    python benchmarks/build_arithmetic_policy.py [--out DIR] [--check]

One minute of one core. Only train pairs are shown. The same machine and the same versions of torch and transformers
give the same file, bit for bit; ``--check`` builds aside and compares the sha256 with the file that is shipped.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import hashlib
import math
import random
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from derl_gym.tasks.arithmetic import Arithmetic, boxed, mentions, pairs, prompt

SEED = 0
BATCH = 128
TOKENS = ("<pad>", "<eos>", "<unk>", *"0123456789+= :{}", "\\boxed", "Step")
STYLES = {"plain": "{:02d}", "step": "Step 1: {:02d}", "box": "\\boxed{{{:02d}}}"}
Mixture = list[tuple[str, float, float]]
"""(style, share of the completions, share of these that is right)."""

CLEAN: Mixture = [("plain", 0.4, 1.0), ("step", 0.3, 1.0), ("box", 0.3, 1.0)]
SLOPPY: Mixture = [("plain", 0.84, 0.2), ("step", 0.12, 0.2), ("box", 0.04, 0.3)]
SLIPS = (1, 2, 10)
"""A wrong answer is off by one of these, either way."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    r"""One token per character, but ``\boxed`` and ``Step`` are one each: completions are short, runs fast."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed|Step|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=64,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Random weights. Heads of 32: vLLM on a CPU takes 32 and 64, not 16."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            pad_token_id=TOKENS.index("<pad>"),
            bos_token_id=None,
            eos_token_id=TOKENS.index("<eos>"),
        )
    )


def wrong(answer: int, rng: random.Random) -> int:
    """A slip that still has two digits."""
    while not 0 <= (slip := answer + rng.choice((-1, 1)) * rng.choice(SLIPS)) <= 99:
        pass
    return slip


def fit(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    mixture: Mixture,
    steps: int,
    learning_rate: float,
    rng: random.Random,
) -> None:
    """Maximum likelihood of completions drawn from the mixture; warm-up over 50 steps, then a cosine to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1.0, (i + 1) / 50) * (1 + math.cos(math.pi * i / steps)) / 2
    )
    shown = pairs("train")
    weights = [share for _, share, _ in mixture]
    model.train()
    for step in range(steps):
        inputs, labels = [], []
        for _ in range(BATCH):
            a, b = rng.choice(shown)
            style, _, right = rng.choices(mixture, weights)[0]
            answer = a + b if rng.random() < right else wrong(a + b, rng)
            question = tokenizer.encode(prompt(a, b))
            reply = [*tokenizer.encode(STYLES[style].format(answer)), tokenizer.eos_token_id]
            inputs.append(torch.tensor(question + reply))
            labels.append(torch.tensor([-100] * len(question) + reply))
        x = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        y = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
        loss = torch.nn.functional.cross_entropy(model(input_ids=x).logits[:, :-1].flatten(0, 1), y[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 300 == 0:
            print(f"  step {step + 1}: loss {loss.item():.3f}", flush=True)
    model.eval()


def describe(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> str:
    """Rates of the primitives and of right answers per style, over ten samples of every validation problem."""
    task = Arithmetic()
    examples = task.load("validation") * 10
    x = torch.tensor([tokenizer.encode(example["prompt"]) for example in examples])
    with torch.inference_mode():
        y = model.generate(  # type: ignore[operator]
            input_ids=x, attention_mask=torch.ones_like(x), do_sample=True, top_k=0, max_new_tokens=8
        )
    texts = tokenizer.batch_decode(y[:, x.shape[1] :], skip_special_tokens=True)
    values = torch.tensor(task.primitive_values(texts, examples))
    lines = ["  " + "  ".join(f"g{i + 1} {100 * v:.1f} %" for i, v in enumerate(values.mean(0).tolist()))]
    styles = ["box" if boxed(text) else "step" if "Step" in text else "plain" for text in texts]
    for style in STYLES:
        right = [mentions(t, e["answer"]) for t, e, s in zip(texts, examples, styles, strict=True) if s == style]
        lines.append(f"  {style}: {100 * len(right) / len(texts):.1f} %, right {100 * sum(right) / len(right):.1f} %")
    return "\n".join(lines)


def build(folder: Path) -> None:
    """Both stages, saved to the folder."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{model.num_parameters():,} parameters; adding right, in all three styles")
    fit(model, tokenizer, CLEAN, 1500, 4e-3, rng)
    print("being sloppy")
    fit(model, tokenizer, SLOPPY, 300, 1e-3, rng)
    print(describe(model, tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def sha256(folder: Path) -> str:
    """Of the weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(Arithmetic().base_policy), help="folder to write")
    parser.add_argument("--check", action="store_true", help="write nothing; compare with the file in --out")
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()
    if not arguments.check:
        build(arguments.out)
        print(f"{sha256(arguments.out)}  {arguments.out / 'model.safetensors'}")
        return
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        built, shipped = sha256(Path(folder)), sha256(arguments.out)
    print(f"built   {built}\nshipped {shipped}")
    if built != shipped:
        sys.exit("the weights differ: another machine or another version of torch, or the recipe has changed")


if __name__ == "__main__":
    main()
