"""A small policy for the text worlds' benchmarks: a Llama with random weights, and a tokenizer of whole words.

What it learns, or is made to say, is the scripts' business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<unk>", "<|end|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_policy(texts: Iterable[str], hidden: int, layers: int, context: int, tied: bool) -> tuple[Any, Any]:
    """Model and tokenizer.

    Args:
        texts: Whose words, digits and signs are the tokens.
        hidden: Width, a multiple of the 32 of a head.
        layers: Number of layers.
        context: Tokens that an episode may have.
        tied: Whether the output layer shares the embeddings' weights.
    """
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    word = Regex(r"</?[a-z|]+>|[a-z]+|\d|[^\s\w]")
    words.pre_tokenizer = pre_tokenizers.Split(word, "removed", invert=True)  # type: ignore[assignment]
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=SPECIAL))  # type: ignore[arg-type]
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|end|>", pad_token="<pad>", unk_token="<unk>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
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
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config), tokenizer
