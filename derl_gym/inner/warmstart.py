"""Warm start: supervised training of an inner policy on expert episodes, before any reward (RLVMR's cold start).

The sequences are exactly those of ``episodes.py``: what an expert says is tokenised as a reply, messages as messages,
and only the replies are learned. Where the episodes come from is ``tasks/expert.py``'s business.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase, set_seed

from derl_gym.fields import check_fields
from derl_gym.hub import hub_answers, use_cache_without_network, where
from derl_gym.inner.config import InnerConfig
from derl_gym.inner.episodes import Conversation, limits_of
from derl_gym.inner.evaluate import generation_config, load_tokenizer
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


@dataclasses.dataclass(frozen=True)
class Reader:
    """What a policy is besides its weights.

    Attributes:
        tokenizer: The policy's.
        conversation: How it reads an episode.
        limit: Tokens that an episode may have; ``None``: any number.
    """

    tokenizer: PreTrainedTokenizerBase
    conversation: Conversation
    limit: int | None


def reader_of(policy: str, config: InnerConfig) -> Reader:
    """Load what a policy is besides its weights: soon done, and the place to find out that there is no such policy.

    Args:
        policy: Hub name or folder.
        config: See :func:`train`.

    Raises:
        ValueError: the policy is not there, lacks its tokenizer or its config.json, or cannot be prompted as asked.
    """
    if not where(policy) and not hub_answers():
        raise ValueError(f"the policy {policy} is no folder and not in the hub's cache, and the hub does not answer")
    use_cache_without_network(policy)
    try:
        tokenizer = load_tokenizer(policy)
        described = AutoConfig.from_pretrained(policy)
    except (OSError, ValueError) as error:
        raise ValueError(f"the policy {policy} has no tokenizer or config.json that can be loaded: {error}") from error
    stops = stop_ids(generation_config(policy, described), tokenizer)
    conversation = Conversation(tokenizer, resolve_style(config.prompt_style, tokenizer, stops), stops)
    return Reader(tokenizer, conversation, limits_of(config, described, 0).tokens)


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
        folder: Where the trained policy goes, whole or not at all.
        settings: How it is trained.
        config: How it will be prompted (``prompt_style``), how long its episodes may be, and in which precision it is
            trained; the other inner settings are not used.
        on_epoch: Called with the number of an ended epoch, from 1, and its mean loss per token.

    Returns:
        ``episodes`` (trained on), ``too_long`` (left out), ``tokens`` (learned in one epoch), ``losses`` (per epoch).

    Raises:
        ValueError: the folder is there already, every episode is too long for the policy, nothing is to be learned
            from one, or see :func:`reader_of`.
        OSError: the trained policy cannot be written.
    """
    if folder.exists():
        raise ValueError(f"{folder} is there already")
    set_seed(settings.seed)
    reader = reader_of(policy, config)
    limit = reader.limit
    encoded = [encode(row, reader.conversation) for row in rows]
    if dull := [place for place, (_, labels) in enumerate(encoded) if all(label == IGNORED for label in labels)]:
        raise ValueError(f"nothing is to be learned from episode {dull[0] + 1}: every reply has weight 0")
    kept = [pair for pair in encoded if limit is None or len(pair[0]) <= limit]
    if not kept:
        raise ValueError(
            f"all {len(rows)} episodes are longer than the {limit} tokens that the policy's context or "
            f"inner.max_episode_tokens allow; the shortest has {min((len(ids) for ids, _ in encoded), default=0)}"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    model.to(device)  # type: ignore[arg-type]
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable()
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
                ids, mask, labels = _padded(
                    batch[first : first + settings.micro_batch_size], reader.tokenizer.pad_token_id
                )
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
    _keep(model, reader.tokenizer, folder)
    return {
        "episodes": len(kept),
        "too_long": len(rows) - len(kept),
        "tokens": sum(label != IGNORED for _, labels in kept for label in labels),
        "losses": losses,
    }


def _keep(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a policy aside, and give it its name once all of it is on the disk."""
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed
    try:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        for path in (*aside.iterdir(), aside):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        aside.rename(folder)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if os.strerror(errno.ENOSPC) in str(error):  # safetensors has an exception of its own for it
            raise OSError(f"disk full: {folder} was not written") from error
        raise


def _padded(batch: Sequence[tuple[list[int], list[int]]], pad: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Int64 (B, T) each: ids, attention mask and labels, padded on the right."""
    longest = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row, _ in batch])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row, _ in batch])
    labels = torch.tensor([row + [IGNORED] * (longest - len(row)) for _, row in batch])
    return ids, mask, labels
