"""What the policy reads: an example as chat or as plain text, as token ids, within the length that there is.

Training (where ``trl`` tokenises) and evaluation see the same ids; a test holds this file to ``trl``'s own call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks.base import Example

Prompt = str | list[dict[str, str]]
"""Plain text, or chat messages with ``role`` and ``content``."""
Style = Literal["chat", "plain"]


def stop_ids(generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end a completion: those of the model's generation settings and the tokenizer's, as in ``trl``."""
    declared = generation.eos_token_id if generation else None
    ids = [*(declared if isinstance(declared, list) else [declared]), tokenizer.eos_token_id]
    return [i for i in dict.fromkeys(ids) if isinstance(i, int)]


def resolve_style(asked: str, tokenizer: PreTrainedTokenizerBase, stops: Sequence[int]) -> Style:
    """``"chat"`` or ``"plain"``.

    A chat template alone says nothing: base models ship one too. But only a model that was taught to chat stops at
    the token that its template writes after an assistant's message.

    Args:
        asked: ``InnerConfig.prompt_style``.
        tokenizer: Of the policy.
        stops: Tokens at which the policy stops, from :func:`stop_ids`.

    Raises:
        ValueError: chat was asked for and the tokenizer has no chat template.
    """
    if asked == "plain" or (asked == "auto" and not tokenizer.chat_template):
        return "plain"
    if not tokenizer.chat_template:
        raise ValueError("inner.prompt_style is 'chat', but the policy's tokenizer has no chat template")
    if asked == "chat":
        return "chat"
    said = "derl"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "gym"}, {"role": "assistant", "content": said}], tokenize=False
    )
    after = tokenizer(str(text).rpartition(said)[2], add_special_tokens=False)["input_ids"]
    return "chat" if set(after) & set(stops) else "plain"


def prompt_of(example: Example, style: Style) -> Prompt:
    """An example's ``"messages"`` or ``"prompt"`` in a style; text becomes one message of the user where need be.

    Raises:
        ValueError: the example has chat messages alone, and the style is plain.
    """
    prompt: Prompt = example["prompt"]
    if style == "chat":
        prompt = example.get("messages") or prompt
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(prompt, str):
        raise ValueError(
            "the task's prompts are chat messages, but the policy is prompted in plain text: it has no chat template, "
            "or wasn't taught to stop as its template does (inner.prompt_style='chat' insists on the template)"
        )
    return prompt


def token_ids(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids of prompts of one style, none padded: ``GRPOTrainer._tokenize_prompts`` without tools and images."""
    if not prompts:
        return []
    if isinstance(prompts[0], str):
        return tokenizer(text=list(prompts))["input_ids"]  # type: ignore[arg-type]
    rendered = tokenizer.apply_chat_template(
        list(prompts),  # type: ignore[arg-type]
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
    )
    return rendered["input_ids"]  # type: ignore[index]


def longest_prompt(config: InnerConfig, model: PretrainedConfig, completion: int) -> int | None:
    """Tokens that a prompt may have, so that it and a completion fit into the policy's context.

    Args:
        config: Its ``max_prompt_length`` is a limit too.
        model: Configuration of the policy; its ``max_position_embeddings`` is the context.
        completion: Tokens of the longest completion.

    Returns:
        The limit; ``None`` when nothing sets one.

    Raises:
        ValueError: the completion alone fills the context.
    """
    context = getattr(model.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return config.max_prompt_length
    if context <= completion:
        raise ValueError(
            f"completions of {completion} tokens leave no room for a prompt in the policy's context of {context} tokens"
        )
    room = context - completion
    return room if config.max_prompt_length is None else min(room, config.max_prompt_length)
