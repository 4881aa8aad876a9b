"""Small policies made in code: a word-level tokenizer and a Llama of a few thousand weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} {{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)
FIRST_DIGIT = 11
"""Id of "0"; those of the other digits follow, then "<unk>"."""
WORDS = ["<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<bos>", "user", "assistant", "derl", "gym", "+", "="]


def make_tokenizer(eos: str = "<|endoftext|>", template: str | None = CHAT_TEMPLATE, bos: bool = False) -> Any:
    """Digits and a few words; ``bos``: it starts every text that is not rendered by the template."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = WORDS + [str(digit) for digit in range(10)] + ["<unk>"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d|[a-z]+|\S|\s+"), "isolated")
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 4)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=eos,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<bos>" if bos else None,
        chat_template=template,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )


def make_policy(
    folder: Path, context: int = 64, generation: dict[str, Any] | None = None, **tokenizer_settings: Any
) -> str:
    """A randomly initialised policy in ``folder``; ``generation``: what its generation settings declare."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(**tokenizer_settings)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=context,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            tie_word_embeddings=True,
        )
    )
    for name, value in (generation or {}).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
