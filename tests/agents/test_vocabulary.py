"""Masks over the tokens of a language model: exactly the programs of the grammar, or of the alphabet."""

import numpy as np
import pytest

from derl_agents.vocabulary import END, AlphabetVocabulary, CharsetAutomaton, LMVocabulary
from derl_gym.programs import Grammar, InvalidProgram, RewardProgram

STRINGS = [*"g0123456789+-*/.()", "g1", "+g2", ")/(", "**", "10", "0.5", "*g", "g1 ", " g1", "the", "\u0661", None, ""]
END_ID = 99


def lm_vocabulary(grammar, kind="grammar", strings=STRINGS):
    padded = [*strings, *[None] * (END_ID - len(strings)), "<eos>", "g1"]
    return LMVocabulary(grammar, padded, END_ID, kind)


def random_walk(vocabulary, rng):
    state, columns = vocabulary.start(), []
    while True:
        legal = np.flatnonzero(vocabulary.legal(state))
        assert len(legal), f"stuck after {vocabulary.text(columns)!r}"
        columns.append(int(rng.choice(legal)))
        if columns[-1] == END:
            return columns
        state = vocabulary.advance(state, columns[-1])


@pytest.mark.parametrize("make", [lm_vocabulary, lambda g: AlphabetVocabulary(g, "grammar")])
@pytest.mark.parametrize("max_length", [1, 3, 12])
def test_every_walk_under_the_grammar_mask_parses(make, max_length):
    grammar = Grammar(k=4, max_length=max_length)
    vocabulary, rng = make(grammar), np.random.default_rng(0)
    for _ in range(100):
        columns = random_walk(vocabulary, rng)
        assert len(columns) <= vocabulary.max_columns
        RewardProgram.parse(vocabulary.text(columns), k=4, max_length=max_length)


@pytest.mark.parametrize("make", [lm_vocabulary, lambda g, kind: AlphabetVocabulary(g, kind)])
def test_every_walk_under_the_charset_mask_is_over_the_alphabet(make):
    grammar = Grammar(k=4, max_length=6)
    vocabulary, rng = make(grammar, "charset"), np.random.default_rng(0)
    texts = {vocabulary.text(random_walk(vocabulary, rng)) for _ in range(300)}
    assert "" not in texts
    assert all(grammar.decode(grammar.encode(text)) == text for text in texts)  # encodes, so it fits the length

    def parses(text):
        try:
            return bool(RewardProgram.parse(text, k=4))
        except InvalidProgram:
            return False

    assert 0 < sum(map(parses, texts)) < len(texts)  # unlike the grammar mask it lets nonsense through


def test_legal_tokens_are_those_whose_characters_are_legal():
    """Against a direct computation: a token is legal when the automaton takes all of its characters."""
    grammar, rng = Grammar(k=4, max_length=8), np.random.default_rng(1)
    vocabulary = lm_vocabulary(grammar)
    for _ in range(30):
        state = vocabulary.start()
        for column in random_walk(vocabulary, rng):
            expected = [grammar.automaton.can_end(state)]
            for string in vocabulary.strings[1:]:
                after = state
                for char in string:
                    after = None if after is None else grammar.automaton.advance(after, char)
                expected.append(after is not None)
            assert vocabulary.legal(state).tolist() == expected
            if column != END:
                state = vocabulary.advance(state, column)


def test_only_plain_tokens_of_the_alphabet_are_columns():
    vocabulary = lm_vocabulary(Grammar(k=4))
    assert vocabulary.ids[0] == END_ID
    assert "the" not in vocabulary.strings and " g1" not in vocabulary.strings and "\u0661" not in vocabulary.strings
    assert [i for i, string in zip(vocabulary.ids, vocabulary.strings, strict=True) if string == "g1"] == [18, 100]


def test_text_to_columns_takes_the_longest_token():
    vocabulary = lm_vocabulary(Grammar(k=4))
    columns = vocabulary.columns("g1+g2*10+0.5*g3")
    assert [vocabulary.strings[c] for c in columns] == ["g1", "+g2", "*", "10", "+", "0.5", "*g", "3", ""]
    assert vocabulary.text(columns) == "g1+g2*10+0.5*g3"


@pytest.mark.parametrize("text", ["g1+", "+g1", "g1g2", "07", "g1 ", "x", ""])
def test_text_to_columns_refuses_what_the_mask_refuses(text):
    for vocabulary in (lm_vocabulary(Grammar(k=4)), AlphabetVocabulary(Grammar(k=4), "grammar")):
        if text == "g1 " and isinstance(vocabulary, AlphabetVocabulary):
            continue  # the grammar's own encoding drops spaces
        with pytest.raises(InvalidProgram):
            vocabulary.columns(text)


def test_a_vocabulary_that_could_get_stuck_is_refused():
    with pytest.raises(ValueError, match=r"no token for \) \* alone"):
        lm_vocabulary(Grammar(k=4), strings=[s for s in STRINGS if s not in (")", "*")])


def test_charset_automaton_counts_alphabet_tokens():
    automaton = CharsetAutomaton(Grammar(k=12, max_length=3))

    def used(text):
        state = automaton.start()
        for char in text:
            if (state := automaton.advance(state, char)) is None:
                return None
        return state[0], automaton.can_end(state)

    assert used("g1") == (1, True) and used("g12") == (1, True)  # one name
    assert used("g") == (1, False)
    assert used("g+") is None and used("gg") is None
    assert used("**") == (1, True) and used("***") == (2, True)
    assert used("(((") == (3, True) and used("((((") is None
    assert used("g3g") == (2, False) and used("((g12") == (3, True) and used("((g123") is None
    assert used("x") is None


def test_masks_over_a_real_vocabulary(stories260k):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(stories260k)
    strings = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    vocabulary = LMVocabulary(Grammar(k=4), strings, tokenizer.eos_token_id, "grammar")
    rng = np.random.default_rng(0)
    for _ in range(50):
        columns = random_walk(vocabulary, rng)
        # What the tokenizer itself makes of the ids is the program that is scored.
        ids = [vocabulary.ids[column] for column in columns[:-1]]
        assert tokenizer.decode(ids) == vocabulary.text(columns)
