"""Agent tasks: primitives on episodes, levels and splits, the words of a turn, expert episodes, the warm start."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_agents

from derl_gym.programs import RewardProgram
from derl_gym.tasks import load_task
from derl_gym.tasks.agent import AgentTask, Episode, Move, command_of
from derl_gym.tasks.alfworld import ALFWorldL0, ALFWorldL1, ALFWorldL2
from derl_gym.tasks.expert import Experts, in_turn, read_rows
from derl_gym.tasks.scienceworld import ScienceWorldL0, ScienceWorldL1, ScienceWorldL2
from derl_gym.tasks.step_scores import parse_reply
from derl_gym.tasks.worlds import Turn
from derl_gym.testing import check_task

TASK = toy_agents.Coins()


def move(tag: str, action: str, available: bool = True) -> Move:
    return Move("", f"<{tag}>because</{tag}>\n<action>{action}</action>", available)


PAPERS = Episode(
    "g",
    [
        move("planning", "a"),
        move("monitor", "b"),
        move("explore", "c"),
        move("explore", "d"),
        move("explore", "c"),
        move("reflection", "e"),
    ],
    "won",
)
"""Step scores [1, 0, 1, 1, 0, 0]: the paper's example (section 4.3)."""


def test_the_papers_example() -> None:
    values = TASK.primitive_values([PAPERS], [{}])
    assert values == [[1.0, 0.5, 1.0, 0.0]]
    assert RewardProgram.parse("g1+(g2*(g3/2))-(g4/3)", k=4)(np.array(values)).tolist() == [1.25]
    assert [p.function(PAPERS, {}) for p in TASK.primitives] == values[0]  # type: ignore[arg-type]
    assert TASK.correct(PAPERS, {}) and not TASK.correct(dataclasses.replace(PAPERS, status="over"), {})


def test_flipped_primitives_and_rlvmrs_step_scores() -> None:
    flipped = load_task("toy_agents:Coins", flip=["g2", "g4"])
    assert flipped.primitive_values([PAPERS], [{}]) == [[1.0, -0.5, 1.0, 0.0]]  # type: ignore[list-item]
    first = Episode("g", [move("reflection", "a")])
    assert TASK.primitive_values([first], [{}]) == [[0.0, 0.0, 0.0, 0.0]]
    assert toy_agents.Coins(compat="rlvmr").primitive_values([first], [{}]) == [[0.0, 1.0, 0.0, 0.0]]
    with pytest.raises(ValueError, match="compat must be None or 'rlvmr', not 'grpo'"):
        toy_agents.Coins(compat="grpo")


def test_what_a_reply_does() -> None:
    admissible = ["go to desk 1", "look"]
    assert command_of("<action>\nGo to  Desk 1\n</action>", admissible) == ("go to desk 1", True)
    assert command_of("<action>fly</action>", admissible) == ("fly", False), "the world answers that it means nothing"
    assert command_of("look", admissible) == (None, False)
    assert command_of("<action>look</action><action>look</action>", admissible) == (None, False)


class LostCoins(toy_agents.Coins):
    """A world that does not begin."""

    @property
    def world(self):
        return "toy_agents:Lost", {}


def test_a_world_that_cannot_be_played_is_found_out() -> None:
    problems = check_task(LostCoins()).problems
    assert len(problems) == 2 and "KeyError: 'lost'" in problems[0], problems


def test_the_task_keeps_what_a_task_promises() -> None:
    begun = toy_agents.Corridor()
    report = check_task(TASK)
    assert report.problems == []
    assert report.lines[:2] == ["train: 21 examples", "validation: 7 examples"]
    assert [line.partition(" was played by its walkthrough of ")[2] for line in report.lines[-2:]] == [
        f"{len(begun.walkthrough(TASK.load(split)[0]['game']))} commands" for split in ("train", "validation")
    ]
    splits = {split: [e["game"] for e in TASK.load(split)] for split in ("train", "validation", "full", "test")}
    assert splits["full"] == splits["train"] + splits["validation"]
    assert not set(splits["full"]) & set(splits["test"])
    with pytest.raises(ValueError, match="split must be one of"):
        TASK.load("dev")  # type: ignore[arg-type]


def test_words_of_a_turn() -> None:
    class House(ALFWorldL0):
        def __init__(self) -> None:
            AgentTask.__init__(self)

    turn = Turn(" You see a desk 1. ", ["go to desk 1", "look"], task="find a pen.")
    opening = House().opening(turn)
    assert opening.startswith("You are in a house") and "Task: find a pen." in opening
    for tag in ("planning", "explore", "reflection", "monitor", "action"):
        assert f"<{tag}>" in opening and f"</{tag}>" in opening
    assert opening.endswith("Observation: You see a desk 1.\nAdmissible actions: go to desk 1; look")
    assert House().message(Turn("Nothing happens.", ["look"])) == (
        "Observation: Nothing happens.\nAdmissible actions: look"
    )


def test_scienceworld_tells_forms_once_and_objects_at_every_turn() -> None:
    task = ScienceWorldL0()
    admissible = [
        "go to kitchen",
        "look around",
        "look at door to kitchen",
        "look at air",
        "move air to door to kitchen",
    ]
    turn = Turn("You see air.", admissible, task="Your task is to boil air.")
    assert "pour OBJ in OBJ" in task.opening(turn)
    assert task.message(turn) == "Observation: You see air.\nObjects in reach: door to kitchen, air"
    assert task.message(Turn("Which?", ["0", "1", "look at air"])).endswith("air\nOr choose 0, 1.")


# -- levels -------------------------------------------------------------------------------------------------


def counts(task: AgentTask) -> list[int]:
    return [len(task.load(split)) for split in ("train", "validation", "full", "test")]


def test_alfworlds_levels_on_made_games(made_games: Path, tmp_path: Path) -> None:
    tasks = [cls(str(made_games), check_data=False) for cls in (ALFWorldL0, ALFWorldL1, ALFWorldL2)]
    assert [counts(task) for task in tasks] == [[10, 2, 12, 6], [10, 2, 12, 6], [6, 2, 8, 2]]
    kinds = [{example["benchmark"] for example in task.load("test")} for task in tasks]
    assert kinds[0] == kinds[1] == {"pick", "look", "clean", "heat", "cool", "two"} and kinds[2] == {"cool", "two"}
    parts = [{example["game"].split("/")[0] for example in task.load("test")} for task in tasks]
    assert parts == [{"valid_seen"}, {"valid_unseen"}, {"valid_unseen"}]
    other = ALFWorldL0(str(made_games), check_data=False, split_seed=1)
    assert other.load("train") != tasks[0].load("train")
    few = ALFWorldL0(str(made_games), check_data=False, only=["pick", "look"])
    assert {example["benchmark"] for example in few.load("full")} == {"pick", "look"}
    seen = tmp_path / "seen"
    for part in ("train", "valid_seen"):
        shutil.copytree(made_games / part, seen / part)
    assert counts(ALFWorldL0(str(seen), check_data=False)) == [10, 2, 12, 6], "L0 does not need the unseen part"
    with pytest.raises(FileNotFoundError, match="valid_unseen is gone"):
        ALFWorldL1(str(seen), check_data=False).load("train")
    few = ALFWorldL0(str(made_games), check_data=False, only="pick")
    assert {example["benchmark"] for example in few.load("full")} == {"pick"}
    for level, only, refused in (
        (ALFWorldL0, [], "without train games, which are of clean, cool, heat, look, pick, two"),
        (ALFWorldL0, [1], "no games of 1; it has clean"),
        (ALFWorldL2, ["pick"], "without test games, which are of cool, two"),
        (ALFWorldL2, ["cool"], "without train games, which are of clean, heat, look, pick"),
    ):
        with pytest.raises(ValueError, match=refused):
            level(str(made_games), check_data=False, only=only).load("train")
    with pytest.raises(ValueError, match="no games of swim; it has clean, cool, heat, look, pick, two"):
        ALFWorldL0(str(made_games), check_data=False, only=["swim"]).load("train")
    with pytest.raises(ValueError, match="3553|3,553"):
        ALFWorldL0(str(made_games)).load("train")


@pytest.mark.slow
def test_alfworlds_levels_on_the_real_games(alfworld: None, data_dir: Path) -> None:
    levels = [counts(cls(str(data_dir))) for cls in (ALFWorldL0, ALFWorldL1, ALFWorldL2)]
    assert levels == [[2842, 711, 3553, 140], [2842, 711, 3553, 134], [1766, 441, 2207, 38]]


@pytest.mark.slow
def test_scienceworlds_levels(scienceworld: None) -> None:
    levels = [counts(cls()) for cls in (ScienceWorldL0, ScienceWorldL1, ScienceWorldL2)]
    assert levels == [[2658, 664, 3322, 1661], [2658, 664, 3322, 1684], [1794, 448, 2242, 549]]


# -- experts ------------------------------------------------------------------------------------------------


def test_expert_episodes_win_in_the_tag_format() -> None:
    with TASK.open_pool(1) as pool:
        rows = list(Experts(TASK, pool, 9, slips=0.5, seed=1).episodes(TASK.load("train")))
        assert len(rows) == len(TASK.load("train"))
        slips = 0
        for row in rows:
            turn = pool.reset_all({0: row["game"]})[0]
            assert isinstance(turn, Turn)
            assert row["messages"][0] == {"role": "user", "content": TASK.opening(turn)}
            said = row["messages"][1::2]
            for place, message in enumerate(said):
                reply = parse_reply(message["content"])
                command, available = command_of(message["content"], turn.admissible)
                assert reply.valid and command is not None
                slip = message.get("weight", 1) == 0
                assert available is not slip, "a slip is a command that is not possible now"
                if slip:
                    slips += 1
                    assert parse_reply(said[place + 1]["content"]).tag == "reflection"
                turn = pool.step_all({0: command})[0]
                assert isinstance(turn, Turn)
            assert turn.won
        assert slips
        again = list(Experts(TASK, pool, 9, slips=0.5, seed=1).episodes(TASK.load("train")))
        assert again == rows
        short = Experts(TASK, pool, 3, slips=0.0)
        assert all(len(row["messages"]) <= 6 for row in short.episodes(TASK.load("train")))
        assert short.left_out["more than 3 turns"] == 6, "three of each kind, then the kind is left out"
        assert short.left_out["of a kind whose walkthroughs are too long"] > 0


def test_kinds_come_in_turn() -> None:
    examples = [{"game": g, "benchmark": g[0]} for g in ("a1", "a2", "a3", "b1", "c1", "c2")]
    assert [e["game"] for e in in_turn(examples)] == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert list(in_turn([])) == []


def row(*messages: Any) -> str:
    return json.dumps({"messages": [dict(zip(("role", "content", "weight"), m, strict=False)) for m in messages]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no episodes"),
        ("{", "line 1 is not JSON"),
        ("\n[]", 'line 2: expected an object with "messages"'),
        (row(("user", "a")), "expected an object"),
        (row(("assistant", "a"), ("user", "b")), 'message 1 must have the role "user"'),
        (row(("user", "a"), ("assistant", 3)), 'message 2 must have the role "assistant" and text'),
        (row(("user", "a"), ("assistant", "b", 0.5)), "the weight of message 2 must be 0 or 1, not 0.5"),
        (row(("user", "a"), ("assistant", "b"), ("user", "c")), "ends with the assistant's message"),
        (row(("user", "a"), ("assistant", "b", 0)), "line 1: nothing is to be learned: every reply has weight 0"),
        (
            "\n" + row(("user", "a"), ("assistant", "b\ud800")),
            "line 2: message 2 is no text: surrogates .* character 2",
        ),
    ],
)
def test_files_of_ones_own_are_checked(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_rows(path)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text(row(("user", "a"), ("assistant", "b", 0), ("user", "c"), ("assistant", "d")) + "\n\n")
    assert [m.get("weight") for m in read_rows(path)[0]["messages"]] == [None, 0, None, None]
    text = "line\u2028paragraph\u2029next\u0085end"
    message = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "b"}]}
    path.write_text(json.dumps(message, ensure_ascii=False) + "\r\n", encoding="utf-8", newline="")
    assert read_rows(path)[0]["messages"][0]["content"] == text
    path.write_bytes(b"\n\xff")
    with pytest.raises(ValueError, match="line 2 is not JSON: 'utf-8' codec"):
        read_rows(path)
