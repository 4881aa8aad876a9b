"""The warm start: the sequences of episodes, only the replies learned, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import toy_agents

from derl_gym.cli import main

warmstart = pytest.importorskip("derl_gym.inner.warmstart")

from derl_gym.inner.episodes import Conversation, Limits, Playing  # noqa: E402
from derl_gym.inner.warmstart import IGNORED, WarmStart, encode  # noqa: E402
from derl_gym.tasks.expert import Experts  # noqa: E402

TASK = toy_agents.Coins()


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    with TASK.open_pool(1) as pool:
        return list(Experts(TASK, pool, 9, slips=0.5, seed=1).episodes(TASK.load("train")))


@pytest.mark.parametrize("style", ["chat", "plain"])
def test_the_sequences_are_those_of_episodes(rows: list[dict[str, Any]], style: Any) -> None:
    """A policy that says what the expert says makes the same ids, and the same tokens count."""
    tokenizer = toy_agents.make_tokenizer(style == "chat")
    conversation = Conversation(tokenizer, style, [tokenizer.eos_token_id])
    with TASK.open_pool(1) as pool:
        for row in rows:
            said = iter([message["content"] for message in row["messages"][1::2]])

            def expert(contexts: list[list[int]], said: Any = said) -> Any:
                return [conversation.reply(next(said)) for _ in contexts], None

            (track,) = Playing(TASK, pool, conversation).play([row["game"]], expert, Limits(9, 40, None))
            assert track.episode.success
            ids, labels = encode(row, conversation)
            assert ids == track.prompt + track.completion
            weights = [message.get("weight", 1) for message in row["messages"][1::2]]
            learned = [turn >= 0 and weights[turn] == 1 for turn in track.turn_of]
            wanted = [IGNORED] * len(track.prompt)
            wanted += [token if yes else IGNORED for token, yes in zip(track.completion, learned, strict=True)]
            assert labels == wanted


def test_training_learns_the_replies_alone(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    start = toy_agents.make_policy(tmp_path / "start")
    how = WarmStart(epochs=3, batch_size=4, micro_batch_size=2, learning_rate=2e-3)
    seen: list[tuple[int, float]] = []
    found = warmstart.train(start, rows, tmp_path / "a", how, TASK.inner, lambda *ended: seen.append(ended))
    assert found["episodes"] == len(rows) and found["too_long"] == 0
    assert [epoch for epoch, _ in seen] == [1, 2, 3] and [loss for _, loss in seen] == found["losses"]
    assert found["losses"][0] > found["losses"][1] > found["losses"][2]
    conversation = Conversation(toy_agents.make_tokenizer(), "chat", [2])
    assert found["tokens"] == sum(label != IGNORED for row in rows for label in encode(row, conversation)[1])
    again = warmstart.train(start, rows, tmp_path / "b", how, TASK.inner)
    assert again == found
    # How episodes are shared out over forward passes changes no more than rounding.
    other = warmstart.train(start, rows, tmp_path / "c", WarmStart(3, 4, 4, 2e-3), TASK.inner)
    assert other["losses"] == pytest.approx(found["losses"], rel=1e-3)


def test_episodes_that_are_too_long_are_left_out(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    start = toy_agents.make_policy(tmp_path / "start")
    conversation = Conversation(toy_agents.make_tokenizer(), "chat", [2])
    lengths = sorted(len(encode(row, conversation)[0]) for row in rows)
    config = TASK.inner.override(max_episode_tokens=lengths[1])
    found = warmstart.train(start, rows, tmp_path / "few", WarmStart(epochs=1), config)
    kept = sum(length <= lengths[1] for length in lengths)
    assert (found["episodes"], found["too_long"]) == (kept, len(rows) - kept)
    with pytest.raises(ValueError, match=f"all {len(rows)} episodes are longer than the 9 tokens .* {lengths[0]}"):
        warmstart.train(start, rows, tmp_path / "none", WarmStart(), config.override(max_episode_tokens=9))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="epochs must be a whole number of at least 1, not 0"):
        WarmStart(epochs=0)
    with pytest.raises(ValueError, match="learning_rate must be a number above 0"):
        WarmStart(learning_rate=0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = toy_agents.make_policy(tmp_path / "start")
    given = ["warmstart", "toy_ids:DERL-Coins-v0", "--inner", f"policy={start}", "--learning-rate", "2e-3"]
    out = tmp_path / "warm"
    assert main([*given, "--out", str(out), "--episodes", "6", "--epochs", "2", "--batch-size", "2"]) == 0
    assert f"policy: {out / 'policy'}" in capsys.readouterr().out
    told = json.loads((out / "warm_start.json").read_text())
    assert told["episodes"] == 6 and len(told["losses"]) == 2 and told["policy"] == start
    assert (out / "policy" / "model.safetensors").is_file() and (out / "policy" / "tokenizer.json").is_file()
    lines = (out / "episodes.jsonl").read_text().splitlines()
    assert len(lines) == 6
    games = [json.loads(line)["game"] for line in lines]
    assert [TASK.kind_of(game) for game in games] == ["right", "left"] * 3
    assert set(games) <= {example["game"] for example in TASK.load("train")}, "validation and test stay unseen"

    own = tmp_path / "own"
    assert main([*given, "--out", str(own), "--data", str(out / "episodes.jsonl"), "--epochs", "1"]) == 0
    assert json.loads((own / "warm_start.json").read_text())["episodes"] == 6
    capsys.readouterr()
    assert main([*given, "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["warmstart", "toy_ids:DERL-Digits-v0", "--out", str(tmp_path / "no")]) == 2
    assert "plays no episodes" in capsys.readouterr().err
