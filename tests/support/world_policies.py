"""Small policies for real worlds, made in code: a word-level tokenizer of the world's own words, and a small Llama."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<pad>", "<unk>", "<|end|>", "<|user|>", "<|assistant|>"]


def make_tokenizer(texts: Iterable[str]) -> Any:
    """Words, digits and signs as tokens; what is decoded has a blank between any two, which commands don't mind."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    words = Regex(r"</?[a-z|]+>|[a-z]+|\d|[^\s\w]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words, "removed", invert=True)  # type: ignore[assignment]
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=SPECIAL))  # type: ignore[arg-type]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
    )


def make_policy(
    folder: Path, texts: Iterable[str], context: int = 4096, hidden: int = 64, layers: int = 2, seed: int = 0
) -> str:
    """A randomly initialised one in ``folder``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(texts)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=context,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
