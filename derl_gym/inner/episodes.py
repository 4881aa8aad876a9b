"""Episodes as token ids, and the one place that knows how ``trl`` takes them (``rollout_func``).

An episode is ONE sequence of ids that only grows: the first message, the reply as it was sampled, the next message,
and so on. Nothing is ever tokenised again, so training sees exactly the context that every reply was sampled in. A
window of past turns that slides would not do that: a reply would be trained under a context that it never had.
What the policy did not write is masked out of the loss, and no completion ends on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from trl.trainer.grpo_trainer import GRPOTrainer

from derl_gym.inner.config import InnerConfig
from derl_gym.inner.credit import step_advantages
from derl_gym.inner.generate import Sample
from derl_gym.inner.prompts import Style, prompt_of, token_ids
from derl_gym.inner.ranks import gathered
from derl_gym.inner.stage import Stage
from derl_gym.tasks.agent import NO_ACTION, AgentTask, Episode, Move, Status, command_of
from derl_gym.tasks.base import Example, Task
from derl_gym.tasks.worlds import Turn, WorldPool

Sampled = tuple[list[list[int]], list[list[float]] | None]
"""New ids of each row, and their log-probabilities where the engine gives them."""

Play = Callable[[list[Example]], tuple[list[Episode], int]]
"""``play(examples) -> (episodes, number of tokens)``: what the evaluation of an agent task asks."""
_SAID = "derl-gym-said"

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # that rollout_func may change is why trl's version is pinned


class Conversation:
    """The ids of messages to the policy, as chat or as plain text.

    Args:
        tokenizer: Of the policy.
        style: How it is prompted.
        stops: Tokens at which it stops, from :func:`derl_gym.inner.prompts.stop_ids`.

    Attributes:
        end: Id that ends a reply: what the chat template writes after one, or the tokenizer's end of text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, style: Style, stops: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.style: Style = style
        self._special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        after = self._after_reply("")
        self._ends = next((i + 1 for i, token in enumerate(after) if token in stops), 0)
        end: Any = after[self._ends - 1] if self._ends else tokenizer.eos_token_id
        self.end: int = end

    def opening(self, text: str) -> list[int]:
        """The first message, up to where the reply begins."""
        text = self._spelled(text) if self.style == "chat" else f"{self._spelled(text)}\n"
        return list(token_ids([prompt_of({"prompt": text}, self.style)], self.tokenizer)[0])

    def following(self, text: str, reply: Sequence[int]) -> list[int]:
        """What stands between a reply and the next one: the reply's end, where it was cut short, and a message."""
        ids = self._after_reply(self._spelled(text))
        return ids[self._ends :] if reply and reply[-1] == self.end else ids

    def reply(self, text: str) -> list[int]:
        """A reply that somebody else wrote, with its end."""
        ids: Any = self.tokenizer(self._spelled(text), add_special_tokens=False)["input_ids"]
        return [*ids, self.end]

    def text(self, reply: Sequence[int]) -> str:
        """What a reply says."""
        return str(self.tokenizer.decode(list(reply), skip_special_tokens=True))

    def _spelled(self, text: str) -> str:
        """The text with a blank inside what would be read as a special token: no world may end the policy's turn."""
        for token in self._special:
            text = text.replace(token, f"{token[:1]} {token[1:]}")
        return text

    def _after_reply(self, text: str) -> list[int]:
        if self.style == "plain":
            rendered = f"\n{text}\n"
        else:
            messages = [
                {"role": "user", "content": "gym"},
                {"role": "assistant", "content": _SAID},
                {"role": "user", "content": text},
            ]
            whole: Any = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            rendered = whole.partition(_SAID)[2]
        ids: Any = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return ids


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long an episode may be: turns, tokens of one reply, tokens of all of it (``None``: no limit)."""

    turns: int
    reply: int
    tokens: int | None


def limits_of(config: InnerConfig, model: PretrainedConfig, reply: int) -> Limits:
    """The limits of an episode whose replies may have ``reply`` tokens: the settings', and the policy's context."""
    context = getattr(model.get_text_config(), "max_position_embeddings", None)
    known = [limit for limit in (config.max_episode_tokens, context) if limit is not None]
    return Limits(config.max_turns, reply, min(known, default=None))


@dataclasses.dataclass
class Track:
    """An episode as ids: all parts of ``completion`` have one entry per token.

    Attributes:
        episode: What was played.
        prompt: Ids of the first message.
        completion: Ids of everything after it; ends with the last reply.
        turn_of: The turn in which the policy wrote the token; -1 where it did not.
        logprobs: The engine's log-probability of the token; 0 where the policy did not write it.
        message: Ids of the message that the policy reads next, not yet part of the sequence.
        turn: What the world said last.
    """

    episode: Episode
    prompt: list[int] = dataclasses.field(default_factory=list)
    completion: list[int] = dataclasses.field(default_factory=list)
    turn_of: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    message: list[int] = dataclasses.field(default_factory=list)
    turn: Turn = Turn("", [])

    @property
    def mask(self) -> list[int]:
        """1 for tokens that the policy wrote."""
        return [int(turn >= 0) for turn in self.turn_of]

    @property
    def context(self) -> list[int]:
        """What the next reply is sampled in."""
        return self.prompt + self.completion + self.message

    def add(self, reply: list[int], logprobs: Sequence[float] | None) -> None:
        """Take in the message that was read, and the reply."""
        for ids, turn, logps in (
            (self.message, -1, None),
            (reply, len(self.episode.moves), logprobs),
        ):
            self.completion += ids
            self.turn_of += [turn] * len(ids)
            self.logprobs += logps if logps is not None else [0.0] * len(ids)
        self.message = []


@dataclasses.dataclass(frozen=True)
class Playing:
    """What it takes to play a task's games: the task, processes that play its world, the policy's messages."""

    task: AgentTask
    pool: WorldPool
    conversation: Conversation

    def play(self, games: Sequence[str], sample: Callable[[list[list[int]]], Sampled], limits: Limits) -> list[Track]:
        """Play an episode of every game, as many at a time as the pool has slots.

        An episode that ends makes room for the next one, so that the batch stays full. The policy's action is carried
        out where it is clear, admissible or not.

        Args:
            games: Their ids, repetitions allowed.
            sample: The policy: new ids for rows of ids.
            limits: Of an episode.

        Returns:
            The episodes, in the order of the games.

        Raises:
            WorldFailed: a world failed again and again.
        """
        tracks = [Track(Episode(game)) for game in games]
        waiting, live, stage = deque(tracks), dict[int, Track](), Stage(self.pool)
        while waiting or live:
            free = [slot for slot in range(self.pool.slots) if slot not in live]
            new = {slot: waiting.popleft() for slot in free[: len(waiting)]}
            for slot, turn in stage.begin({slot: track.episode.game for slot, track in new.items()}).items():
                new[slot].turn, new[slot].prompt = turn, self.conversation.opening(self.task.opening(turn))
            live |= new
            for slot, track in list(live.items()):
                if status := _ended(track, limits):
                    track.episode.status = status
                    del live[slot]
            if not live or (waiting and len(live) < self.pool.slots):
                continue
            slots = sorted(live)
            replies, logprobs = sample([live[slot].context for slot in slots])
            commands: dict[int, str] = {}
            for number, slot in enumerate(slots):
                track, text = live[slot], self.conversation.text(replies[number])
                track.add(list(replies[number]), None if logprobs is None else logprobs[number])
                command, available = command_of(text, track.turn.admissible)
                track.episode.moves.append(Move(track.turn.observation, text, available))
                if command is not None:
                    commands[slot] = command
            turns = stage.step(commands)
            for number, slot in enumerate(slots):
                track = live[slot]
                track.turn = turns.get(slot) or dataclasses.replace(track.turn, observation=NO_ACTION)
                track.message = self.conversation.following(self.task.message(track.turn), replies[number])
        return tracks

    def for_evaluation(self, sample: Sample, limits: Limits) -> Play:
        """Episodes of examples' games, for ``evaluate.py``."""

        def play_examples(examples: list[Example]) -> tuple[list[Episode], int]:
            tracks = self.play([example["game"] for example in examples], lambda rows: (sample(rows), None), limits)
            return [track.episode for track in tracks], sum(len(t.prompt) + len(t.completion) for t in tracks)

        return play_examples


def worlds_of(task: Task, config: InnerConfig) -> contextlib.AbstractContextManager[WorldPool | None]:
    """The processes that play an agent task's world while the context lasts; of another task none.

    Raises:
        ValueError: settings that do not go together with the task.
    """
    if not isinstance(task, AgentTask):
        if config.algorithm != "grpo":
            raise ValueError(
                f"inner.algorithm={config.algorithm!r} credits the steps of episodes: {task.name} has none"
            )
        return contextlib.nullcontext()
    if config.vllm_tensor_parallel > 1:
        raise ValueError(
            f"inner.vllm_tensor_parallel must be 1 for the agent task {task.name}: GPUs that share an engine would "
            "have to play in step"
        )
    if config.vllm_sleep:
        raise ValueError(
            f"inner.vllm_sleep must be False for the agent task {task.name}: the engine would be woken, and its "
            "weights loaded again, for every turn"
        )
    return task.open_pool(config.world_workers)


def _ended(track: Track, limits: Limits) -> Status | None:
    if track.turn.won:
        return "won"
    if track.turn.over:
        return "over"
    if len(track.episode.moves) >= limits.turns:
        return "turns"
    if limits.tokens is not None and len(track.context) + limits.reply > limits.tokens:
        return "tokens"
    return None


class EpisodeTrainer(GRPOTrainer):
    """``trl.GRPOTrainer`` whose rollouts are episodes. Its prompts are the examples' numbers, as text.

    A row of a batch names an example, and ``trl`` repeats it for each rollout of a group: a group plays one game.

    Args:
        playing: Plays the games.
        examples: Of the training split.
        limits: Of an episode.
        algorithm: "grpo", "rlvmr" or "gigpo"; see ``credit.py``.
        **settings: Of ``GRPOTrainer``.
    """

    def __init__(
        self, playing: Playing, examples: Sequence[Example], limits: Limits, algorithm: str, **settings: Any
    ) -> None:
        self._playing, self._limits, self._algorithm = playing, limits, algorithm
        self._games = [example["game"] for example in examples]
        super().__init__(rollout_func=self._rollout, **settings)  # type: ignore[arg-type]

    def _rollout(self, prompts: list[str], trainer: Any) -> dict[str, list | None]:
        tracks = self._playing.play([self._games[int(prompt)] for prompt in prompts], self._sample, self._limits)
        if not any(gathered(any(track.episode.moves for track in tracks))):
            raise ValueError(
                f"no episode has room for a single reply: the first message of game {tracks[0].episode.game!r} has "
                f"{len(tracks[0].prompt)} tokens, a reply may have {self._limits.reply}, an episode "
                f"{self._limits.tokens} (inner.max_episode_tokens, and the policy's context)"
            )
        for track in tracks:
            if not track.episode.moves:  # trl wants a completion: one that is masked out
                track.completion, track.turn_of, track.logprobs = [self._playing.conversation.end], [-1], [0.0]
        # trl counts the prompts and what the policy wrote.
        self.state.num_input_tokens_seen += sum(gathered(sum(track.turn_of.count(-1) for track in tracks)))
        return {
            "prompt_ids": [track.prompt for track in tracks],
            "completion_ids": [track.completion for track in tracks],
            "logprobs": [track.logprobs for track in tracks] if self.use_vllm else None,
            "env_mask": [track.mask for track in tracks],
            "episode": [track.episode for track in tracks],
            "turn_of": [track.turn_of for track in tracks],
        }

    def _sample(self, rows: list[list[int]]) -> Sampled:
        return self._generate_single_turn(rows, None, {}, num_generations=1)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self._algorithm != "grpo":
            output["advantages"] = self._per_token(inputs, output)
        return output

    def _per_token(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> torch.Tensor:
        """Float32 (B, T): the advantage of the turn that a token belongs to; 0 where the policy did not write it."""
        reward: Any = self.reward_funcs[0]
        parts = gathered(([row["episode"] for row in inputs], reward.last))  # a group may lie on two ranks
        credit = step_advantages(
            self._algorithm,
            [episode for episodes, _ in parts for episode in episodes],
            [reward for _, rewards in parts for reward in rewards],
            self.num_generations,  # type: ignore[arg-type]
            self._playing.task.compat,
        )
        first = self.accelerator.process_index * len(inputs)
        advantages = torch.zeros(output["completion_ids"].shape, dtype=torch.float32)
        for i, row in enumerate(inputs):
            # The last entry stands for turn -1.
            of_turns = torch.tensor([*credit[first + i], 0.0], dtype=torch.float32)
            advantages[i, : len(row["turn_of"])] = of_turns[torch.tensor(row["turn_of"])]
        return advantages.to(output["advantages"].device)
