"""The warm start: the sequences of episodes, only the replies learned, and the command."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import toy_agents
import world_policies

from derl_gym.cli import main
from derl_gym.tasks.agent import HOW_TO_ANSWER
from derl_gym.trials.run_directory import locked

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


def test_episodes_without_anything_to_learn_are_refused(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    start = toy_agents.make_policy(tmp_path / "start")
    dull = {"messages": [message | {"weight": 0} for message in rows[0]["messages"]]}
    with pytest.raises(ValueError, match="nothing is to be learned from episode 2: every reply has weight 0"):
        warmstart.train(start, [rows[0], dull], tmp_path / "out", WarmStart(), TASK.inner)
    assert not (tmp_path / "out").exists()


def test_a_policy_is_written_whole_or_not_at_all(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    start = toy_agents.make_policy(tmp_path / "start")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # the weights have some 300 kB
    try:
        with pytest.raises(Exception, match="(?i)too large"):
            warmstart.train(start, rows[:2], tmp_path / "out", WarmStart(epochs=1), TASK.inner)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["start"]
    (tmp_path / ".out").mkdir()  # as a process leaves it that is killed while it writes
    (tmp_path / ".out" / "model.safetensors").write_bytes(b"half")
    warmstart.train(start, rows[:2], tmp_path / "out", WarmStart(epochs=1), TASK.inner)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "start"]
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 100_000
    with pytest.raises(ValueError, match="out is there already"):
        warmstart.train(start, rows[:2], tmp_path / "out", WarmStart(epochs=1), TASK.inner)


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


def test_what_is_wrong_is_said_before_the_walkthroughs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = Path(toy_agents.make_policy(tmp_path / "start"))
    out, afile = tmp_path / "warm", tmp_path / "file"
    afile.write_text("")
    given = ["warmstart", "toy_ids:DERL-Coins-v0", "--episodes", "2", "--epochs", "1"]

    def refused(message: str, out: Path = out, policy: Path = start) -> None:
        assert main([*given, "--out", str(out), "--inner", f"policy={policy}"]) == 2
        assert message in capsys.readouterr().err
        assert not (out / "episodes.jsonl").exists()

    refused(f"--out must be a folder: {afile} is a file", out=afile)
    refused(f"no such policy folder: {tmp_path}/none", policy=tmp_path / "none")
    refused(f"{afile.parent} is no policy: expected config.json and *.safetensors", policy=tmp_path)
    refused("file", out=afile / "below")
    assert not out.exists()
    out.mkdir()
    with locked(out / "lock"):
        refused("is being written by")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (start / name).unlink()
    refused(f"the policy {start} has no tokenizer or config.json that can be loaded")


def test_a_presets_few_turns_do_not_limit_the_walkthroughs(tmp_path: Path, made_games: Path) -> None:
    """Also: the folder of one that was killed over its walkthroughs will do."""
    start = world_policies.make_policy(tmp_path / "start", [HOW_TO_ANSWER], context=8192)
    out = tmp_path / "warm"
    out.mkdir()
    (out / "episodes.jsonl").write_text('{"messages": [')
    given = ["warmstart", "DERL-ALFWorld-L0-v0", "--out", str(out), "--preset", "smoke", "--epochs", "1"]
    given += ["--data-dir", str(made_games), "--task-options", "check_data=False", "--episodes", "3"]
    assert main([*given, "--inner", f"policy={start}"]) == 0
    told = json.loads((out / "warm_start.json").read_text())
    lines = (out / "episodes.jsonl").read_text().splitlines()
    assert told["episodes"] == len(lines) == 3
    assert max(len(json.loads(line)["messages"]) for line in lines) > 6, "the preset has three turns"
    few = tmp_path / "few"
    assert main([*given[:3], str(few), *given[4:], "--inner", f"policy={start}", "max_turns=3"]) == 0
    lines = (few / "episodes.jsonl").read_text().splitlines()
    assert max(len(json.loads(line)["messages"]) for line in lines) <= 6, "what is given outranks the task's own"
