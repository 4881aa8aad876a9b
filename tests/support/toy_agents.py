"""A text world in 40 lines, the agent task that plays it, and a policy that can be taught it in seconds."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks.agent import AgentTask
from derl_gym.tasks.worlds import Turn, World, WorldPool

ROOMS = 7


class Corridor(World):
    """Rooms in a row, and a coin in one of them. ``"2-4"``: begin in room 2, the coin is in room 4."""

    parts = ("train", "test")
    per_worker = 64

    def games(self, part: str) -> list[str]:
        pairs = [(a, b) for a in range(ROOMS) for b in range(ROOMS) if a != b]
        return [f"{a}-{b}" for a, b in pairs if ((a + b) % 3 == 0) == (part == "test")]

    def reset(self, game_id: str) -> Turn:
        self.room, self.coin = map(int, game_id.split("-"))
        return self._turn("", task="take the coin")

    def step(self, command: str) -> Turn:
        if command not in self._admissible():
            return self._turn("nothing happens . ")
        if command == "take coin":
            return Turn("taken .", [], won=True, over=True)
        self.room += {"go left": -1, "go right": 1, "wait": 0}[command]
        return self._turn("")

    def walkthrough(self, game_id: str) -> list[str]:
        room, coin = map(int, game_id.split("-"))
        return ["go right" if coin > room else "go left"] * abs(coin - room) + ["take coin"]

    def _admissible(self) -> list[str]:
        ways = ["go left"] * (self.room > 0) + ["go right"] * (self.room < ROOMS - 1)
        return [*ways, *["take coin"] * (self.room == self.coin), "wait"]

    def _turn(self, said: str, task: str = "") -> Turn:
        where = "here" if self.room == self.coin else "left" if self.coin < self.room else "right"
        return Turn(f"{said}room {self.room} coin {where} .", self._admissible(), task=task)


class Narrow(Corridor):
    per_worker = 2


class Lost(Corridor):
    def reset(self, game_id: str) -> Turn:
        raise KeyError("lost")


class Faulty(Corridor):
    """It dies (``fault="die"``) or hangs (``"hang"``) at "take coin", as often as the file ``times`` says.

    ``drunk``: where it begins depends on how often that is.
    """

    def __init__(self, fault: str = "die", times: str = "", drunk: bool = False) -> None:
        self.fault, self.times, self.drunk = fault, Path(times), drunk

    def reset(self, game_id: str) -> Turn:
        turn = super().reset(game_id)
        if self.drunk and self.times.read_text() == "0":
            return dataclasses.replace(turn, observation="room 3 coin here .")
        return turn

    def step(self, command: str) -> Turn:
        if command == "take coin" and (left := int(self.times.read_text())) > 0:
            self.times.write_text(str(left - 1))
            if self.fault == "hang":
                time.sleep(3600)
            os._exit(3)
        return super().step(command)


class Coins(AgentTask):
    """The task: short messages, since the policy is small."""

    name = "coins"
    version = "1"
    description = "Walk to the coin and take it."
    role = "coins ."
    inner = InnerConfig(
        steps=2,
        batch_size=16,
        max_completion_length=26,
        max_turns=9,
        world_workers=1,
        learning_rate=1e-3,
        timeout=120.0,
    )
    world_class = "toy_agents:Corridor"

    def __init__(self, data_dir: str | None = None, options: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(data_dir, **settings)
        self.options = options or {}

    @property
    def world(self) -> tuple[str, dict[str, Any]]:
        return self.world_class, self.options

    def list_games(self, pool: WorldPool) -> dict[str, list[str]]:
        games = pool.games("train")
        return {"train": games[::2] + games[1::4], "validation": games[3::4], "test": pool.games("test")}

    def kind_of(self, game: str) -> str:
        return "left" if game[0] > game[2] else "right"

    def opening(self, turn: Turn) -> str:
        return f"{self.role} {turn.task} . {self.message(turn)}"

    def message(self, turn: Turn) -> str:
        return f"{turn.observation} {self.choices(turn.admissible)}"

    def choices(self, admissible: Any) -> str:
        return "; ".join(admissible)

    base_policy = "the test brings one"


class FaultyCoins(Coins):
    world_class = "toy_agents:Faulty"


TAGS = [f"<{slash}{tag}>" for tag in ("planning", "explore", "reflection", "monitor", "action") for slash in ("", "/")]
WORDS = (
    "coins take the coin room here left right nothing happens taken go wait i have to do this first not know yet what "
    "find there next step is cannot now instead derl gym said 0 1 2 3 4 5 6 . ; : -"
)
VOCABULARY = ["<pad>", "<unk>", "<|end|>", "<|user|>", "<|assistant|>", *TAGS, *WORDS.split()]
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(chat: bool = True) -> Any:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    words = Regex(r"</?[a-z|]+>|[a-z]+|\d|\S")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words, "removed", invert=True)  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=TEMPLATE if chat else None,
    )


def make_policy(folder: Path, chat: bool = True, context: int = 512) -> str:
    """A randomly initialised one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(chat)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
