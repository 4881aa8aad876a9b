from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from derl_gym.programs import RewardProgram
from derl_gym.tasks.step_scores import TAGS, Reply, agent_primitives, find_command, parse_reply, step_scores, thirds


def said(tag: str, action: str) -> str:
    return f"<{tag}>because</{tag}>\n<action>{action}</action>"


def scores(*outputs: str, available=None, success=True, compat=None) -> list[float]:
    replies = [parse_reply(output) for output in outputs]
    return step_scores(replies, [True] * len(outputs) if available is None else available, success, compat)


def test_the_papers_example() -> None:
    outputs = [
        said("planning", "go to desk 1"),
        said("monitor", "look"),
        said("explore", "go to drawer 1"),
        said("planning", "open drawer 1"),
        said("monitor", "inventory"),
        said("explore", "go to desk 1"),
    ]
    assert scores(*outputs) == [1, 0, 1, 1, 0, 0]
    primitives = agent_primitives(outputs, [True] * 6, True)
    assert primitives == (1, 0.5, 1, 0)
    assert RewardProgram.parse("g1+(g2*(g3/2))-(g4/3)", k=4)([primitives]).tolist() == [1.25]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<planning>go</planning><action>look</action>", Reply("look", "planning", "go", True)),
        ("<planning>go</planning>\n<action>\nlook\n</action>", Reply("look", "planning", "go", True)),
        ("<monitor>\ngo\non\n</monitor> <action>go  to\n a 1</action>", Reply("go to a 1", "monitor", "go\non", True)),
        ("So: <Explore>a</Explore> then <ACTION>Look</ACTION>.", Reply("Look", "explore", "a", True)),
        ("", Reply(None, None, "", False)),
        ("look", Reply(None, None, "", False)),
        ("<action>look</action>", Reply("look", None, "", False)),
        ("<planning>go</planning>", Reply(None, "planning", "go", False)),
        ("<planning>go</planning><action></action>", Reply(None, "planning", "go", False)),
        ("<planning>go</planning><action> \n </action>", Reply(None, "planning", "go", False)),
        ("<planning> \n</planning><action>look</action>", Reply("look", "planning", "", False)),
        ("<action>look</action><planning>go</planning>", Reply("look", "planning", "go", False)),
        ("<planning>go</planning><action>a</action><action>b</action>", Reply(None, "planning", "go", False)),
        ("<planning>go</planning><action>look", Reply(None, "planning", "go", False)),
        ("<planning>go</planning>look</action>", Reply(None, "planning", "go", False)),
        ("<planning>go<action>look</action>", Reply("look", None, "", False)),
        ("<planning>go<action>look</action></planning>", Reply("look", None, "", False)),
        ("<planning>go</explore><action>look</action>", Reply("look", None, "", False)),
        ("<planning>a</planning><monitor>b</monitor><action>look</action>", Reply("look", None, "", False)),
        ("<planning>a</planning><monitor></monitor><action>look</action>", Reply("look", None, "", False)),
        ("<planning>a</planning><action>look</action><monitor>b</monitor>", Reply("look", None, "", False)),
        ("<planning>a</planning><planning>b</planning><action>look</action>", Reply("look", None, "", False)),
        ("<think>hm</think><monitor>a</monitor><action>look</action>", Reply("look", "monitor", "a", True)),
        ("< planning>a</planning><action>look</action>", Reply("look", None, "", False)),
        ("<plann\u0131ng>a</plann\u0131ng><action>look</action>", Reply("look", None, "", False)),
        ("<planning>\u200b\ufeff</planning><action>look</action>", Reply("look", "planning", "", False)),
        ("<planning>a</planning><action>\u200b \u2060</action>", Reply(None, "planning", "a", False)),
        ("<planning>?</planning><action>\u200b0</action>", Reply("\u200b0", "planning", "?", True)),
        ("<planning>a</planning><action>a < b</action>", Reply("a < b", "planning", "a", True)),
    ],
)  # fmt: skip
def test_a_reply_is_taken_apart(text: str, expected: Reply) -> None:
    assert parse_reply(text) == expected


def test_planning_scores_with_the_episodes_success() -> None:
    outputs = [said("planning", "a"), said("planning", "a"), said("planning", "b")]
    assert scores(*outputs, success=True) == [1, 1, 1]
    assert scores(*outputs, success=False) == [0, 0, 0]
    assert scores(outputs[0], available=[False]) == [1], "validity and availability are two things"


def test_explore_scores_for_what_no_valid_step_has_issued() -> None:
    assert scores(said("explore", "a"), said("explore", "b"), said("explore", "a")) == [1, 1, 0]
    assert scores(said("monitor", "a"), said("explore", "a")) == [0, 0], "whatever the earlier tag was"
    assert scores(said("monitor", "Go  to a"), said("explore", "go to A")) == [0, 0]
    assert scores("<action>a</action>", said("explore", "a")) == [0, 1], "the earlier step was invalid"
    assert scores(said("explore", "a"), said("explore", "a"), available=[False, False]) == [1, 0]
    assert scores(said("explore", "a"), success=False) == [1]


def test_reflection_scores_after_a_failed_step_with_another_action() -> None:
    after_unavailable = [said("monitor", "a"), said("reflection", "b")]
    assert scores(*after_unavailable, available=[False, True]) == [0, 1]
    assert scores(*after_unavailable, available=[False, False]) == [0, 1]
    assert scores(*after_unavailable, available=[True, True]) == [0, 0], "nothing had gone wrong"
    assert scores(said("monitor", "a"), said("reflection", "A "), available=[False, True]) == [0, 0], "the same again"
    assert scores("nonsense", said("reflection", "b"), available=[False, True]) == [0, 1]
    assert scores("<action>b</action>", said("reflection", "b")) == [0, 0], "the same again, after an invalid step"
    assert scores("<action>a</action>", said("reflection", "b")) == [0, 1]
    two_back = [said("monitor", "a"), said("monitor", "b"), said("reflection", "c")]
    assert scores(*two_back, available=[False, True, True]) == [0, 0, 0], "only the step before counts"


def test_reflection_at_the_first_step() -> None:
    assert scores(said("reflection", "a")) == [0]
    assert scores(said("reflection", "a"), compat="rlvmr") == [1]
    assert scores(said("reflection", "a"), said("reflection", "b"), compat="rlvmr") == [1, 0]
    assert scores("<reflection></reflection><action>a</action>", compat="rlvmr") == [0], "invalid steps never score"


def test_monitor_and_invalid_steps_score_nothing() -> None:
    assert scores(said("monitor", "a"), "a", "<planning>x</planning>", "<explore>x</explore><action>") == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("given_scores", "expected"),
    [
        ([], (0, 0, 0)),
        ([1], (1, 0, 0)),
        ([1, 1], (1, 1, 0)),
        ([0, 1, 0], (0, 1, 0)),
        ([1, 0, 1, 0], (0.5, 1, 0)),
        ([1, 0, 1, 0, 1], (0.5, 0.5, 1)),
        ([1, 0, 1, 1, 0, 0], (0.5, 1, 0)),
        ([1, 1, 0, 1, 0, 0, 0], (2 / 3, 0.5, 0)),
        ([1, 1, 1, 0, 0, 1, 1, 1], (1, 1 / 3, 1)),
    ],
)
def test_thirds(given_scores: list[float], expected: tuple[float, float, float]) -> None:
    assert thirds(given_scores) == expected


def test_an_empty_episode() -> None:
    assert agent_primitives([], [], False) == (0, 0, 0, 0)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="1 replies and 2 flags"):
        step_scores([parse_reply("")], [True, True], True)
    with pytest.raises(ValueError, match="compat must be None or 'rlvmr', not 'verl'"):
        step_scores([], [], True, "verl")  # type: ignore[arg-type]


def test_the_admissible_command_that_is_meant() -> None:
    assert find_command("Go  to desk 1", ["look", "go to desk 1"]) == "go to desk 1"
    assert find_command("go to desk", ["go to desk 1"]) is None
    assert find_command(None, ["look"]) is None
    assert find_command("look", []) is None


pieces = st.sampled_from(
    [f"<{slash}{tag}>" for tag in (*TAGS, "action") for slash in ("", "/")] + ["look", "go to a", " ", "\n", "<", ">"]
)
texts = st.lists(pieces, max_size=8).map("".join) | st.text(max_size=40)
proper = st.builds(said, st.sampled_from(TAGS), st.sampled_from("abc"))


@given(texts)
def test_any_text_can_be_read(text: str) -> None:
    reply = parse_reply(text)
    if reply.valid:
        assert reply.tag in TAGS and reply.action and reply.thought
        lower = text.lower()
        assert sum(lower.count(f"<{name}>") for name in (*TAGS, "action")) == 2
        assert parse_reply(said(reply.tag, reply.action)).action == reply.action
    assert parse_reply(f"so\n{text}\n.") == reply, "what stands around does not matter"


@given(st.lists(st.tuples(texts | proper, st.booleans()), max_size=10), st.booleans())
def test_scores_of_any_episode(steps: list[tuple[str, bool]], success: bool) -> None:
    outputs, available = [text for text, _ in steps], [flag for _, flag in steps]
    replies = [parse_reply(output) for output in outputs]
    given_scores = step_scores(replies, available, success)
    assert set(given_scores) <= {0.0, 1.0} and len(given_scores) == len(outputs)
    for cut in range(len(steps)):
        assert step_scores(replies[:cut], available[:cut], success) == given_scores[:cut], "no step looks ahead"
    for reply, score in zip(replies, given_scores, strict=True):
        assert not score or (reply.valid and reply.tag != "monitor")
    theirs = step_scores(replies, available, success, "rlvmr")
    assert theirs[1:] == given_scores[1:]
    g1, *rest = agent_primitives(outputs, available, success)
    assert g1 == success and all(0 <= g <= 1 for g in rest)


@given(st.lists(st.sampled_from([0.0, 1.0]), max_size=40))
def test_thirds_share_out_every_step(given_scores: list[float]) -> None:
    size, rest = divmod(len(given_scores), 3)
    lengths = [size + (rest > 0), size + (rest > 1), size]
    total = sum(mean * length for mean, length in zip(thirds(given_scores), lengths, strict=True))
    assert total == pytest.approx(sum(given_scores))
