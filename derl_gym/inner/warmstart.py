"""Warm start: supervised training of an inner policy on expert episodes, before any reward (RLVMR's cold start).

The sequences are exactly those of ``episodes.py``: what an expert says is tokenised as a reply, messages as messages,
and only the replies are learned. Where the episodes come from is ``tasks/expert.py``'s business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, set_seed

from derl_gym.fields import check_fields
from derl_gym.hub import use_cache_without_network
from derl_gym.inner.config import InnerConfig
from derl_gym.inner.episodes import Conversation, limits_of
from derl_gym.inner.evaluate import load_tokenizer
from derl_gym.inner.generate import autocast_dtype
from derl_gym.inner.prompts import resolve_style, stop_ids
from derl_gym.tasks.expert import Row

IGNORED = -100
"""Label of a token that is not learned."""


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """How the policy is trained; the defaults are RLVMR's."""

    epochs: int = 5
    batch_size: int = 16
    """Episodes per optimiser step."""
    micro_batch_size: int = 1
    """Episodes per forward pass."""
    learning_rate: float = 1e-5
    max_grad_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        ones: dict[str, float] = dict.fromkeys(("epochs", "batch_size", "micro_batch_size"), 1)
        check_fields(self, "", at_least=ones, above=dict.fromkeys(("learning_rate", "max_grad_norm"), 0))


def encode(row: Row, conversation: Conversation) -> tuple[list[int], list[int]]:
    """An expert episode as ``(ids, labels)``: the labels are the ids of what is learned, else :data:`IGNORED`."""
    ids: list[int] = []
    labels: list[int] = []
    reply: list[int] = []
    for place, message in enumerate(row["messages"]):
        if place % 2:
            reply = new = conversation.reply(message["content"])
        elif place:
            new = conversation.following(message["content"], reply)
        else:
            new = conversation.opening(message["content"])
        ids += new
        labels += new if place % 2 and message.get("weight", 1) else [IGNORED] * len(new)
    return ids, labels


def train(
    policy: str,
    rows: Sequence[Row],
    folder: Path,
    settings: WarmStart,
    config: InnerConfig,
    on_epoch: Callable[[int, float], None] | None = None,
) -> dict[str, Any]:
    """Train a policy on episodes and keep it in a folder.

    Args:
        policy: Hub name or folder.
        rows: Expert episodes.
        folder: Where the trained policy goes.
        settings: How it is trained.
        config: How it will be prompted (``prompt_style``), how long its episodes may be, and in which precision it is
            trained; the other inner settings are not used.
        on_epoch: Called with the number of an ended epoch, from 1, and its mean loss per token.

    Returns:
        ``episodes`` (trained on), ``too_long`` (left out), ``tokens`` (learned in one epoch), ``losses`` (per epoch).

    Raises:
        ValueError: every episode is too long for the policy.
    """
    set_seed(settings.seed)
    use_cache_without_network(policy)
    tokenizer = load_tokenizer(policy)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    model.to(device)  # type: ignore[arg-type]
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    stops = stop_ids(model.generation_config, tokenizer)
    conversation = Conversation(tokenizer, resolve_style(config.prompt_style, tokenizer, stops), stops)
    limit = limits_of(config, model.config, 0).tokens
    encoded = [encode(row, conversation) for row in rows]
    kept = [pair for pair in encoded if limit is None or len(pair[0]) <= limit]
    if not kept:
        raise ValueError(
            f"all {len(rows)} episodes are longer than the {limit} tokens that the policy's context or "
            f"inner.max_episode_tokens allow; the shortest has {min(len(ids) for ids, _ in encoded)}"
        )
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    precision = autocast_dtype(config)
    shuffled = torch.Generator().manual_seed(settings.seed)
    losses = []
    model.train()
    for epoch in range(settings.epochs):
        total, learned = 0.0, 0
        order = torch.randperm(len(kept), generator=shuffled).tolist()
        for start in range(0, len(order), settings.batch_size):
            batch = [kept[i] for i in order[start : start + settings.batch_size]]
            tokens = sum(label != IGNORED for _, labels in batch for label in labels)
            for first in range(0, len(batch), settings.micro_batch_size):
                ids, mask, labels = _padded(batch[first : first + settings.micro_batch_size], tokenizer.pad_token_id)
                with torch.autocast(device, precision, enabled=precision is not None):
                    logits = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
                loss = torch.nn.functional.cross_entropy(
                    logits[:, :-1].flatten(0, 1).float(),
                    labels[:, 1:].flatten().to(device),
                    ignore_index=IGNORED,
                    reduction="sum",
                )
                (loss / tokens).backward()
                total += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimiser.step()
            optimiser.zero_grad()
            learned += tokens
        losses.append(total / learned)
        if on_epoch is not None:
            on_epoch(epoch + 1, losses[-1])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {
        "episodes": len(kept),
        "too_long": len(rows) - len(kept),
        "tokens": sum(label != IGNORED for _, labels in kept for label in labels),
        "losses": losses,
    }


def _padded(batch: Sequence[tuple[list[int], list[int]]], pad: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Int64 (B, T) each: ids, attention mask and labels, padded on the right."""
    longest = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row, _ in batch])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row, _ in batch])
    labels = torch.tensor([row + [IGNORED] * (longest - len(row)) for _, row in batch])
    return ids, mask, labels
