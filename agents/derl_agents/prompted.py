"""A prompted language model behind an OpenAI-compatible endpoint (paper appendix F.1, in the style of Eureka).

All adaptation happens in the prompt: the model reads earlier programs with their scores and writes new ones.
Its weights never change. Needs the ``openai`` package (extra ``prompted``).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from derl_agents.base import Agent
from derl_gym.fields import check_fields
from derl_gym.secrets import redacted

LARGEST_ANSWER = 4_000_000
"""Bytes of an endpoint's answer that are read; a longer one is no answer."""
MAX_REPLY = 20_000
"""Characters of a raw reply that are kept."""
LONGEST_LINE = 1_000
"""Characters of a line that are read; programs are much shorter."""


class PromptedLLM(Agent):
    """Asks a chat model for n programs, one per line.

    A missing line, or one that the alphabet cannot write, is an invalid proposal with score 0. The key is read
    from an environment variable and never written; without ``base_url`` it is required, a local server may
    need none.

    Attributes:
        replies: Per outer step the ``step``, the raw ``reply`` (its first 20,000 characters) and the
            ``programs`` read from it; ``replies.jsonl`` in the checkpoint.
    """

    name = "prompted"
    may_change = frozenset({"base_url", "api_key_env", "timeout", "retries"})

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The endpoint and what it is asked."""

        model: str = "gpt-4o"
        """Model name that the endpoint knows."""
        base_url: str | None = None
        """Address of the endpoint, "http://127.0.0.1:8000/v1" for example. None: OpenAI's."""
        temperature: float = 1.0
        """Sampling temperature."""
        max_tokens: int | None = None
        """Longest reply, in tokens. None: the endpoint's default."""
        history: Literal["previous", "all"] = "previous"
        """Which steps' programs and scores the prompt lists: the previous one (the paper) or all."""
        timeout: float = 120.0
        """Seconds to wait for one reply."""
        retries: int = 4
        """Further attempts after a network failure, a timeout, a rate limit or a server error, with backoff."""
        api_key_env: str = "OPENAI_API_KEY"
        """Environment variable that holds the key."""

        def __post_init__(self) -> None:
            check_fields(self, at_least={"temperature": 0, "max_tokens": 1, "retries": 0}, above={"timeout": 0})
            if self.base_url is not None:
                address = urllib.parse.urlsplit(self.base_url)
                if address.username is not None:  # it would be written to the run directory
                    raise ValueError(f"base_url must hold no credentials: put the key into ${self.api_key_env}")
                if address.scheme not in ("http", "https") or not address.hostname:
                    raise ValueError(f"base_url must be http://... or https://..., not {self.base_url!r}")

    def __init__(self, envs: Any, options: Options | None = None, *, seed: int = 0, **fields: Any) -> None:
        super().__init__(envs, options, seed=seed, **fields)
        try:
            import openai
        except ImportError as error:
            raise ImportError(
                "the prompted agent needs the openai package: pip install 'derl-gym[prompted]'"
            ) from error
        self._key = os.environ.get(self.options.api_key_env, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ValueError(f"the key in {self.options.api_key_env} holds characters that no HTTP header can")
        if not self._key and self.options.base_url is None:
            raise ValueError(
                f"set the environment variable {self.options.api_key_env} to the endpoint's key, "
                f"or name a local endpoint with base_url"
            )
        if self._key and self._key in (self.options.base_url or ""):
            raise ValueError(f"base_url must hold no credentials: put the key into ${self.options.api_key_env}")
        self._client = openai.OpenAI(
            api_key=self._key or "none",
            base_url=self.options.base_url,
            timeout=self.options.timeout,
            max_retries=self.options.retries,
            default_headers={"Accept-Encoding": "identity"},  # a packed answer has no size before it is unpacked
            http_client=openai.DefaultHttpxClient(event_hooks={"response": [_bound]}),
        )
        self.instruction: str = envs.unwrapped.instruction
        self.history: list[list[tuple[str, float]]] = []
        self.replies: list[dict[str, Any]] = []

    def propose(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> np.ndarray:
        """Ask the endpoint for n programs."""
        reply = self._complete(self.prompt())
        texts = read_programs(reply, self.group_size)
        self.replies.append({"step": self.steps, "reply": reply[:MAX_REPLY], "programs": texts})
        return self.encode(texts)

    def learn(self, actions: np.ndarray, scores: np.ndarray, info: Mapping[str, Any]) -> None:
        """Remember the programs with their scores for the next prompt."""
        # The line as the model wrote it, where the alphabet could not write it: it should see its mistake.
        written = self.replies[-1]["programs"]
        self.history.append([(text, float(score)) for text, score in zip(written, scores, strict=True) if text])

    def prompt(self) -> str:
        """The user message of the next outer step."""
        n = self.group_size
        parts = [self.instruction.strip()]
        steps = self.history[-1:] if self.options.history == "previous" else self.history
        listed = [f"{score:.4f}  {text}" for step in steps for text, score in step]
        if listed:
            parts.append("Reward programs tried so far, each after its validation score (higher is better):")
            parts.append("\n".join(listed))
            parts.append(
                f"Write {n} improved reward programs, different from these and from each other. "
                f"Answer with {n} lines, one program per line and nothing else."
            )
        else:
            parts.append(
                f"Write {n} different reward programs. Answer with {n} lines, one program per line and nothing else."
            )
        return "\n\n".join(parts)

    def _complete(self, prompt: str) -> str:
        import openai

        limit = {} if self.options.max_tokens is None else {"max_tokens": self.options.max_tokens}
        try:
            answer = self._client.chat.completions.create(
                model=self.options.model,
                messages=[{"role": "user", "content": prompt}],
                temperature=self.options.temperature,
                **limit,
            )
            reply = answer.choices[0].message.content or ""
            return redacted(reply, self._key)
        except openai.OpenAIError as error:
            reason = f"{type(error).__name__}: {error}"
            cause = error.__cause__
            if cause is not None and str(cause):
                reason += f" ({cause})"
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            reason = f"the reply is no chat completion ({type(error).__name__}: {error})"
        # Raised outside the except block: the original, which may quote the key, must not be chained to it.
        reason = redacted(reason, self._key)
        raise ConnectionError(
            f"no reply from {self._client.base_url} for model {self.options.model!r} after "
            f"{self.options.retries + 1} attempts at most: {reason[:500]}"
        )

    def write_state(self, folder: Path) -> None:
        """The history and the raw replies."""
        (folder / "prompted.json").write_text(json.dumps(self.history))
        (folder / "replies.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in self.replies))

    def read_state(self, folder: Path) -> None:
        """Read what :meth:`write_state` wrote."""
        history = json.loads((folder / "prompted.json").read_text())
        self.history = [[(text, score) for text, score in step] for step in history]
        self.replies = [json.loads(line) for line in (folder / "replies.jsonl").read_text().splitlines()]


def read_programs(reply: str, n: int) -> list[str]:
    """The first n programs of a chat model's reply, one per line; missing ones are "".

    Reasoning between <think> tags, code fences, numbering, bullets, quotes, backticks, markdown escapes,
    prefixes such as ``R =`` and trailing comments are taken off. Prose is skipped. What remains is not
    repaired: ``g1 if g2`` stays what it is, an invalid proposal.
    """
    reply = re.sub(r"<think>.*?(</think>|\Z)", "", reply, flags=re.DOTALL)
    programs = list(itertools.islice(filter(None, map(program_of, reply.splitlines())), n))
    return programs + [""] * (n - len(programs))


def program_of(line: str) -> str:
    """The program on one line of a reply, without spaces, or "" where there is none."""
    line = (
        line[:LONGEST_LINE]
        .replace("\\", "")
        .replace("\u00b7", "*")
        .replace("\u00d7", "*")
        .replace("\u2212", "-")
        .strip()
    )
    line = re.sub(r"^(?:[-\u2022]\s+|[*>]+\s*|\d+\s*[).:](?=\s|[g(`])\s*|\(\d+\)\s*(?=[g(`]))*", "", line)
    if quoted := re.search(r"`([^`]*g_?\d[^`]*)`", line):
        line = quoted[1]
    line = re.sub(r"^.*[=:](?=.*g_?\{?\d)", "", line)
    line = re.sub(r"\s*(?:#|\u2014|:|\s-+\s+[A-Za-z]{2}|\s\(?[A-Za-z]{3,}[^()]*\)$).*$", "", line)
    line = re.sub(r"g_\{?(\d+)\}?", r"g\1", line).strip("`'\"$*;,. \t")
    prose = re.match(r"[A-Za-z]+\s+[A-Za-z]", line) or len(re.findall(r"[A-Za-z]{3,}", line)) > 2
    return "" if prose or not re.search(r"g\d", line) else re.sub(r"\s+", "", line)


def _bound(response: Any) -> None:
    """Stop reading an answer that is too long; an event hook of httpx, which reads every answer as a whole."""
    if (packed := response.headers.get("content-encoding", "identity")) != "identity":
        raise ValueError(f"the endpoint packs its answers ({packed}), which it was asked not to do")
    whole = response.stream

    class Bounded(type(whole)):  # whichever of httpx's versions this is, it takes streams of its own class alone
        def __init__(self) -> None:
            pass

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for part in whole:
                if (size := size + len(part)) > LARGEST_ANSWER:
                    raise ValueError(f"the answer is longer than {LARGEST_ANSWER:,} bytes")
                yield part

        def close(self) -> None:
            whole.close()

    response.stream = Bounded()
