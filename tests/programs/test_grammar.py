import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derl_gym.programs import END, Grammar, InvalidProgram, RewardProgram


def sentence(text: str, names: tuple[str, ...]) -> bool:
    """The language of the grammar mask, as a recogniser by hand: regular expressions and one recursion."""
    number = r"(?:0|[1-9]\d{0,2})(?:\.\d{1,3})?"
    nonzero = rf"(?!0(?:\.0*)?(?![.\d])){number}"
    exponent = r"(?:[1-9](?:\.\d)?|0\.[1-9])"
    base = "(?:" + "|".join(sorted(names, key=len, reverse=True)) + "|G)"
    power = rf"{base}(?:\*\*{exponent})?"
    factor, divisor = rf"(?:{power}|{number})", rf"(?:{power}|{nonzero})"
    term = rf"{factor}(?:\*{factor}|/{divisor})*"
    program = re.compile(rf"-?{term}(?:[+-]{term})*")
    while True:
        # G stands for a group that was recognised.
        group = re.search(r"\(([^()]*)\)", text)
        inner = text if group is None else group.group(1)
        if not program.fullmatch(inner) or not re.search("[gG]", inner):
            return False
        if group is None:
            return True
        text = text[: group.start()] + "G" + text[group.end() :]


def every_sentence(grammar: Grammar, allowed: set[str] | None = None):
    """Every token sequence of the grammar mask, and the number of states that had no legal token."""
    stack = [(grammar.initial, ())]
    while stack:
        state, ids = stack.pop()
        mask = grammar.mask_of(state)
        assert mask.any(), f"dead end after {grammar.decode(ids)}"
        if mask[0]:
            yield ids
        for token in np.flatnonzero(mask[1:]) + 1:
            if allowed is None or grammar.tokens[token] in allowed:
                stack.append((grammar.advance_token(state, int(token)), (*ids, int(token))))


def test_alphabet():
    grammar = Grammar(k=4, max_length=32)
    assert grammar.tokens[0] == END == "<end>"
    assert grammar.tokens[1:10] == ("g1", "g2", "g3", "g4", "+", "-", "*", "/", "**")
    assert grammar.tokens[10:] == (*"0123456789", ".", "(", ")")
    assert grammar.vocab_size == 23
    small = Grammar(k=4, primitives=("g4", "g1"))
    assert small.tokens[:4] == ("<end>", "g1", "g4", "+")
    assert small.primitives == ("g1", "g4")


@pytest.mark.parametrize(
    "kwargs",
    [{"k": 0}, {"k": 100}, {"max_length": 0}, {"max_length": 129}, {"primitives": ()}, {"primitives": ("g5",)}],
)
def test_arguments_are_checked(kwargs):
    with pytest.raises(ValueError, match="expected"):
        Grammar(**kwargs)


def test_encode_and_decode():
    grammar = Grammar(k=4, max_length=8)
    ids = grammar.encode("g1 + 0.5*g2")
    assert ids.dtype == np.int64 and ids.shape == (8,)
    assert [grammar.tokens[i] for i in ids] == ["g1", "+", "0", ".", "5", "*", "g2", "<end>"]
    assert grammar.decode(ids) == "g1+0.5*g2"
    assert grammar.decode(ids.tolist()) == grammar.decode(iter(ids)) == "g1+0.5*g2"
    assert grammar.encode("(((g1**").tolist() == [21, 21, 21, 1, 9, 0, 0, 0]
    assert grammar.encode("").tolist() == [0] * 8 and grammar.decode([]) == ""
    assert grammar.decode([1, 0, 5, 2]) == "g1"
    assert Grammar(k=12, max_length=4).encode("g12+g1").tolist() == [12, 13, 1, 0]
    for text, reason, column in [
        ("g1+x", "alphabet", 4),
        ("g1 + g9", "'g9'", 6),
        ("g+1", "'g'", 1),
        ("g1+g2+g3+g4+g1", "9 tokens, the limit is 8", None),
        ("1" * 10_000, "10000 characters", None),
        ("g1* *2", "space inside", 3),
        ("1 2+g1", "space inside", 1),
    ]:
        with pytest.raises(InvalidProgram) as caught:
            grammar.encode(text)
        assert reason in caught.value.reason and caught.value.column == column
    with pytest.raises(ValueError, match="from 0 to 22, got 23"):
        grammar.decode([1, 23])


def test_masks_are_int8_copies():
    grammar = Grammar(k=2, max_length=3)
    for kind in ("grammar", "charset"):
        first = grammar.mask([], kind)
        assert first.dtype == np.int8 and first.shape == (grammar.vocab_size,) and first[0] == 0
        kept = first.copy()
        first[:] = 0
        assert (grammar.mask([], kind) == kept).all()
    state_mask = grammar.mask_of(grammar.initial)
    state_mask[:] = 0
    assert grammar.mask_of(grammar.initial).any()
    with pytest.raises(ValueError, match="'grammar' or 'charset', got 'none'"):
        grammar.mask([], "none")  # pyright: ignore[reportArgumentType]


def test_only_end_after_end_and_at_the_limit():
    grammar = Grammar(k=2, max_length=3)
    only_end = [1] + [0] * (grammar.vocab_size - 1)
    full = grammar.encode("g1+2")
    for kind in ("grammar", "charset"):
        assert grammar.mask(full, kind).tolist() == only_end
        assert grammar.mask([1, 0], kind).tolist() == only_end
        assert grammar.mask([1, 0, 0], kind).tolist() == only_end
    assert grammar.mask([9], "charset").tolist() == [1] * grammar.vocab_size
    assert grammar.advance_token(grammar.advance_token(grammar.initial, 1), 0) is None


def legal_after(grammar: Grammar, text: str) -> str:
    ids = grammar.encode(text)[: len(grammar.encode(text).nonzero()[0])]
    return " ".join(grammar.tokens[i] for i in np.flatnonzero(grammar.mask(ids)))


@pytest.mark.parametrize(
    ("prefix", "legal"),
    [
        ("", "g1 g2 - 0 1 2 3 4 5 6 7 8 9 ("),
        ("-", "g1 g2 0 1 2 3 4 5 6 7 8 9 ("),
        ("g1", "<end> + - * / **"),
        ("g1*", "g1 g2 0 1 2 3 4 5 6 7 8 9 ("),
        ("g1**", "0 1 2 3 4 5 6 7 8 9"),
        ("g1**2", "<end> + - * / ."),
        ("g1**0", "."),
        ("g1**0.", "1 2 3 4 5 6 7 8 9"),
        ("0", "+ - * / ."),
        ("123", "+ - * / ."),
        ("g1/0", "."),
        ("g1/0.0", "0 1 2 3 4 5 6 7 8 9"),
        ("g1/0.00", "1 2 3 4 5 6 7 8 9"),
        ("g1/0.001", "<end> + - * /"),
        ("g1*(2", "+ - * / . 0 1 2 3 4 5 6 7 8 9"),
        ("g1*(g2", "+ - * / ** )"),
        ("g1*(g2)", "<end> + - * / **"),
    ],
)
def test_what_the_grammar_allows(prefix, legal):
    order = Grammar(k=2, max_length=32).tokens.index
    assert legal_after(Grammar(k=2, max_length=32), prefix) == " ".join(sorted(legal.split(), key=order))


def test_the_length_limit_keeps_room():
    assert legal_after(Grammar(k=1, max_length=1), "") == "g1"
    assert legal_after(Grammar(k=1, max_length=2), "") == "g1 -"
    assert legal_after(Grammar(k=1, max_length=5), "((") == "g1"
    assert legal_after(Grammar(k=1, max_length=6), "((g1)") == ")"
    assert legal_after(Grammar(k=1, max_length=4), "2*") == "g1"
    assert legal_after(Grammar(k=1, max_length=3), "g1/") == "g1 1 2 3 4 5 6 7 8 9"


def test_tokens_that_would_join_are_no_tokens():
    assert "*" not in legal_after(Grammar(k=12), "g1*").split()
    assert "0" not in legal_after(Grammar(k=12), "g1").split()
    automaton = Grammar(k=12).automaton
    state = automaton.start()
    for char in "g1":
        state = automaton.advance(state, char)
        assert state is not None
    assert "0" in automaton.legal(state) and "3" not in automaton.legal(state)


def test_illegal_prefixes_are_named():
    grammar = Grammar(k=2, max_length=6)
    with pytest.raises(InvalidProgram, match=r"token '\*' is not legal here: after 'g1\*'"):
        grammar.mask([1, 5, 5])
    with pytest.raises(InvalidProgram, match="id 99"):
        grammar.mask([99])
    with pytest.raises(InvalidProgram, match="'<end>'"):
        grammar.advance_token(grammar.initial, 0)


def test_every_short_sentence_is_a_program():
    grammar = Grammar(k=1, max_length=6)
    count = 0
    for ids in every_sentence(grammar, set(grammar.tokens) - set("3456")):
        text = grammar.decode(ids)
        assert len(ids) <= 6
        assert RewardProgram.parse(text, k=1, max_length=6).names == ("g1",)
        count += 1
    assert count > 10_000


def test_the_mask_is_the_language():
    grammar = Grammar(k=1, max_length=5)
    allowed = {"g1", "-", "*", "/", "**", "0", "1", ".", "(", ")"}
    masked = {grammar.decode(ids) for ids in every_sentence(grammar, allowed)}
    texts, fresh = {""}, {""}
    for _ in range(5):
        fresh = {text + token for text in fresh for token in allowed}
        texts |= fresh
    by_hand = {text for text in texts if sentence(text, ("g1",))}
    assert masked == by_hand
    assert len(masked) == 303


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 32), st.integers(1, 12))
def test_masked_sequences_are_programs(walk, seed, max_length, k):
    grammar = Grammar(k=k, max_length=max_length)
    rng = np.random.default_rng(seed)
    for _ in range(25):
        ids = walk(grammar, rng)
        text = grammar.decode(ids)
        assert 1 <= len(ids) <= max_length
        assert RewardProgram.parse(text, k=k, max_length=max_length).names
        assert grammar.encode(text).tolist() == ids + [0] * (max_length - len(ids))
        assert sentence(text, grammar.primitives)


def test_longest_programs_parse(walk):
    rng = np.random.default_rng(0)
    for _ in range(30):
        text = Grammar(k=99, max_length=128).decode(walk(Grammar(k=99, max_length=128), rng, end=0.0))
        assert RewardProgram.parse(text, k=99, max_length=128).text == text
    # The most extreme constants that fit: no overflow, no underflow to a zero denominator.
    grammar = Grammar(k=1, max_length=128)
    for text in ("999*" * 31 + "g1", "1" + "/999" * 31 + "/g1", "1" + "/0.001" * 20 + "*g1", "0.001*" * 20 + "g1"):
        assert grammar.mask(grammar.encode(text))[0] == 1
        assert RewardProgram.parse(text, k=1, max_length=128).names == ("g1",)


def test_walk_by_characters_agrees_with_walk_by_tokens(walk):
    grammar = Grammar(k=12, max_length=20)
    rng = np.random.default_rng(3)
    for _ in range(200):
        text = grammar.decode(walk(grammar, rng))
        state = grammar.automaton.start()
        for char in text:
            assert char in set(grammar.automaton.legal(state))
            state = grammar.automaton.advance(state, char)
            assert state is not None
        assert grammar.automaton.can_end(state)
        assert grammar.automaton.advance(state, "x") is None


def test_equal_pickled_and_shown():
    grammar = Grammar(k=4, max_length=16, primitives=("g1", "g3"))
    again = pickle.loads(pickle.dumps(grammar))
    assert again == grammar and hash(again) == hash(grammar) and again.tokens == grammar.tokens
    assert grammar != Grammar(k=4, max_length=16) and grammar != Grammar(k=4, max_length=17, primitives=("g1", "g3"))
    assert eval(repr(grammar), {"Grammar": Grammar}) == grammar
