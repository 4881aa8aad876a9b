"""The language model that writes programs: sampling and log-probabilities under the mask, cold start.

One class serves the built-in small model and any Hugging Face causal LM. The distribution is always the
model's, scaled by the temperature and renormalised over the legal tokens; what is sampled is what is scored.
The prompt is encoded once for the whole group, in sampling and in every update. Learning from scores is in
derl.py.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, load_model, save_file, save_model
from torch.nn import functional as F

from derl_agents.lm_options import LMOptions
from derl_agents.vocabulary import END, AlphabetVocabulary, LMVocabulary, Vocabulary
from derl_gym.hub import use_cache_without_network
from derl_gym.programs import Grammar

ILLEGAL = -1e9
"""Logit of an illegal token: its probability is exactly 0 in float32, and no NaN can come of it."""


@dataclasses.dataclass
class Batch:
    """Sampled programs as tensors, padded on the right with END.

    Attributes:
        columns: int64 (n, T), END of each program included.
        legal: bool (n, T, C), the columns that were legal at each place.
        valid: float32 (n, T), 1 up to and including each program's END, 0 on padding.
    """

    columns: torch.Tensor
    legal: torch.Tensor
    valid: torch.Tensor


class ProposerLM:
    """A causal language model over reward programs.

    Args:
        grammar: The environment's grammar.
        instruction: What a named model reads before it writes a program; the small model reads nothing.
        options: Resolved options (no ``None`` left).
        seed: Seed of the small model's weights, of the cold start and of sampling.

    Attributes:
        model: The network, float32, in evaluation mode (no dropout, so that probabilities repeat).
        vocabulary: The columns of its vocabulary that can write a program.
        prompt: int64 (P,), token ids before a program.
        generator: CPU generator that every sample is drawn with, whatever the device.
        started: Whether the cold start is done.

    Raises:
        OSError: A named model cannot be loaded.
        ValueError: It has no end token, or no token for some character of the alphabet.
    """

    def __init__(self, grammar: Grammar, instruction: str, options: LMOptions, seed: int) -> None:
        self.grammar, self.options, self.seed = grammar, options, seed
        self.vocabulary: Vocabulary
        name = options.model or "small"
        if name == "small":
            self.vocabulary = AlphabetVocabulary(grammar, options.mask or "grammar")
            self.model = small_model(grammar.vocab_size, self.vocabulary.max_columns + 1, seed)
            prompt = [END]
        else:
            self.model, tokenizer = load_named(name)
            end_id = tokenizer.eos_token_id
            if end_id is None:
                raise ValueError(f"the tokenizer of {options.model} names no eos_token, so no program could end")
            strings = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), self.model.config.vocab_size))))
            self.vocabulary = LMVocabulary(grammar, strings, end_id, options.mask or "grammar")
            prompt = prompt_ids(tokenizer, instruction)
            room = getattr(self.model.config, "max_position_embeddings", None)
            if room is not None and len(prompt) + self.vocabulary.max_columns > room:
                keep = max(room - self.vocabulary.max_columns, 1)
                warnings.warn(
                    f"the instruction takes {len(prompt)} tokens and a program up to {self.vocabulary.max_columns}, "
                    f"but {options.model} reads {room}: only the instruction's last {keep} tokens are used",
                    stacklevel=2,
                )
                prompt = prompt[-keep:]
        self.device = torch.device(choose_device(options))
        self.model.to(self.device).eval()
        self.prompt = torch.tensor(prompt, device=self.device)
        self.ids = torch.tensor(self.vocabulary.ids, device=self.device)
        self.temperature = options.temperature or 1.0
        self.generator = torch.Generator().manual_seed(seed)
        self.started = False

    def logits(self, columns: torch.Tensor, model: Any = None) -> torch.Tensor:
        """Logits (n, T, C) of the next column after the prompt and after each column but the last.

        The prompt runs through the model once; its cache is repeated over the group, gradients included.

        Args:
            columns: int64 (n, T).
            model: Another model of the same kind (the KL reference) instead of the proposer.
        """
        model, tokens = model or self.model, self.ids[columns]
        if len(self.prompt) == 1:
            tokens = torch.cat([self.prompt.expand(len(tokens), 1), tokens[:, :-1]], dim=1)
            return model(tokens, use_cache=False).logits[..., self.ids]
        prompt = model(self.prompt[None], use_cache=True, logits_to_keep=1)
        logits = prompt.logits[..., self.ids].expand(len(tokens), -1, -1)
        if tokens.shape[1] == 1:
            return logits
        cache = prompt.past_key_values
        cache.batch_repeat_interleave(len(tokens))
        rest = model(tokens[:, :-1], past_key_values=cache).logits[..., self.ids]
        return torch.cat([logits, rest], dim=1)

    def log_probs(self, batch: Batch, model: Any = None) -> torch.Tensor:
        """Log-probabilities (n, T, C) of the distribution that :meth:`sample` draws from (or of another model)."""
        scaled = self.logits(batch.columns, model).float() / self.temperature
        return scaled.masked_fill(~batch.legal, ILLEGAL).log_softmax(dim=-1)

    @torch.no_grad()
    def sample(self, n: int) -> list[list[int]]:
        """Draw n programs under the mask; each is a list of columns that ends with END."""
        samples: list[list[int]] = [[] for _ in range(n)]
        states: list[Any] = [self.vocabulary.start() for _ in range(n)]
        output = self.model(self.prompt[None], use_cache=True, logits_to_keep=1)
        cache, logits = output.past_key_values, output.logits[:, -1].expand(n, -1)
        cache.batch_repeat_interleave(n)
        open_rows = list(range(n))
        while True:
            legal = torch.from_numpy(np.stack([self.vocabulary.legal(states[row]) for row in open_rows]))
            scaled = logits[open_rows][:, self.ids].float().cpu() / self.temperature
            probabilities = scaled.masked_fill(~legal, ILLEGAL).softmax(dim=-1)
            drawn = torch.multinomial(probabilities, 1, generator=self.generator)[:, 0].tolist()
            for row, column in zip(open_rows, drawn, strict=True):
                samples[row].append(column)
                if column != END:
                    states[row] = self.vocabulary.advance(states[row], column)
            open_rows = [row for row in open_rows if samples[row][-1] != END]
            if not open_rows:
                return samples
            last = self.ids[torch.tensor([sample[-1] for sample in samples], device=self.device)]
            output = self.model(last[:, None], past_key_values=cache, use_cache=True)
            logits = output.logits[:, -1]

    def text(self, sample: Sequence[int]) -> str:
        """The program that a sample writes."""
        return self.vocabulary.text(sample)

    def batch(self, samples: Sequence[Sequence[int]]) -> Batch:
        """Samples as padded tensors, with the legal columns at every place."""
        n, longest, width = len(samples), max(map(len, samples)), len(self.vocabulary.ids)
        columns = np.full((n, longest), END)
        valid = np.zeros((n, longest), dtype=np.float32)
        legal = np.zeros((n, longest, width), dtype=bool)
        legal[..., END] = True
        for row, sample in enumerate(samples):
            state = self.vocabulary.start()
            for place, column in enumerate(sample):
                legal[row, place] = self.vocabulary.legal(state)
                if column != END:
                    state = self.vocabulary.advance(state, column)
            columns[row, : len(sample)] = sample
            valid[row, : len(sample)] = 1
        return Batch(*(torch.from_numpy(array).to(self.device) for array in (columns, legal, valid)))

    def start(self) -> None:
        """Do the cold start, unless it is done: maximum likelihood on programs of the grammar's prior.

        It needs no mask: the small model learns the grammar, so that the mask later removes little.
        """
        if self.started:
            return
        self.started = True
        options = self.options
        steps, lr = options.cold_start_steps, options.cold_start_lr
        if not steps:
            return
        assert lr is not None
        rng = np.random.default_rng((self.seed, 1))
        texts = [self.grammar.sample(rng) for _ in range(options.cold_start_programs)]
        samples = [self.vocabulary.columns(text) for text in texts]
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / 20) * (1 - step / steps)
            chosen = [samples[i] for i in rng.integers(len(samples), size=options.cold_start_batch)]
            longest = max(map(len, chosen))
            padded = torch.tensor([[*s, *[-100] * (longest - len(s))] for s in chosen], device=self.device)
            logits = self.logits(padded.clamp(min=END)).float()
            loss = F.cross_entropy(logits.flatten(0, 1), padded.flatten(), ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()

    @property
    def cold_started(self) -> bool:
        """Whether the initial weights are our own work, not those of a named model."""
        return self.options.model == "small" or bool(self.options.cold_start_steps)

    def save(self, folder: Path, learned: bool = False) -> None:
        """Write the sampling state, and the weights where they cannot be had from the model's name."""
        (folder / "lm.json").write_text(json.dumps({"started": self.started}))
        save_file({"generator": self.generator.get_state()}, folder / "lm_generator.safetensors")
        if self.started and (learned or self.cold_started):
            save_model(self.model, str(folder / "lm.safetensors"))

    def load(self, folder: Path, learned: bool = False) -> None:
        """Read what :meth:`save` wrote."""
        self.started = json.loads((folder / "lm.json").read_text())["started"]
        self.generator.set_state(load_file(folder / "lm_generator.safetensors")["generator"])
        if self.started and (learned or self.cold_started):
            load_model(self.model, folder / "lm.safetensors", device=str(self.device))


def small_model(vocab_size: int, length: int, seed: int) -> Any:
    """The built-in model: a Qwen2 transformer of about 0.1 million parameters over the program alphabet."""
    config = transformers.Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.Qwen2ForCausalLM(config)


def load_named(name: str) -> tuple[Any, Any]:
    """A causal LM in float32 and its tokenizer, by hub name or folder. Safetensors weights only: no pickles.

    Raises:
        OSError: It cannot be loaded; the message says why, in one line.
    """
    use_cache_without_network(name)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, use_safetensors=True)
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise OSError(
            f"cannot load the proposer {name!r}: expected 'small', a hub name, or a folder with config.json, "
            f"tokenizer files and safetensors weights of a causal language model ({reason})"
        ) from error
    return model, tokenizer


def prompt_ids(tokenizer: Any, instruction: str) -> list[int]:
    """The instruction as token ids, through the tokenizer's chat template when it has one."""
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": instruction}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return tokenizer(text, add_special_tokens=False).input_ids
    ids = tokenizer(instruction.rstrip() + "\n", add_special_tokens=False).input_ids
    return ids if tokenizer.bos_token_id is None else [tokenizer.bos_token_id, *ids]


def choose_device(options: LMOptions) -> str:
    """The torch device that the options ask for.

    Raises:
        ValueError: It is not there.
    """
    if options.device != "auto":
        try:
            torch.empty(1, device=options.device)
        except (AssertionError, RuntimeError) as error:
            raise ValueError(
                f"device must be auto, cpu or another device of torch's that is there, not {options.device!r} ({error})"
            ) from error
        return options.device
    return "cuda" if options.model != "small" and torch.cuda.is_available() else "cpu"
