import numpy as np
import pytest

from derl_gym.programs import Grammar, RewardProgram, UndefinedReward, states_of


@pytest.mark.parametrize("kwargs", [{"max_length": n} for n in (1, 2, 3, 5, 8, 32)] + [{"k": 1}, {"k": 12}])
def test_samples_are_programs_of_the_grammar(kwargs):
    grammar = Grammar(**kwargs)
    rng = np.random.default_rng(0)
    for _ in range(300):
        text = grammar.sample(rng)
        ids = grammar.encode(text)
        grammar.mask(ids)
        assert RewardProgram.parse(text, k=grammar.k, max_length=grammar.max_length).names
        assert grammar.decode(ids) == text


def test_samples_respect_the_vocabulary():
    rng = np.random.default_rng(0)
    names = {name for _ in range(200) for name in used(Grammar(primitives=("g2", "g4")).sample(rng))}
    assert names == {"g2", "g4"}


def used(text: str) -> tuple[str, ...]:
    return RewardProgram.parse(text, k=4).names


def test_the_prior_is_worth_searching(make_primitives):
    """Mostly monotone programs of g1, mixed signs elsewhere, some bends, few duplicates, nothing undefined."""
    grammar = Grammar(k=4)
    rng = np.random.default_rng(1)
    texts = [grammar.sample(rng) for _ in range(1000)]
    primitives = make_primitives(4)
    states = states_of(primitives)
    programs = [RewardProgram.parse(text, k=4) for text in texts]
    for program in programs:
        try:
            assert np.isfinite(program(states)).all()
        except UndefinedReward:
            pytest.fail(f"{program} is undefined")
    good = [p for p in programs if p.analyse(primitives).monotone_in_g1 and "g1" in p.names]
    assert 0.75 < len(good) / 1000 < 0.92
    assert 0.15 <= sum(not is_linear(text) for text in texts) / 1000 <= 0.25
    assert 0.2 < sum("-" in text for text in texts) / 1000 < 0.5
    assert len({p.equivalence_key(states) for p in programs}) > 500


def is_linear(text: str) -> bool:
    terms = text.replace("-", "+").strip("+").split("+")
    return all(term.count("g") == 1 and "**" not in term and "/" not in term and "(" not in term for term in terms)


def test_charset_samples():
    grammar = Grammar(k=4, max_length=32)
    rng = np.random.default_rng(0)
    texts = [grammar.sample_charset(rng) for _ in range(2000)]
    tokens = [grammar.tokens[i] for text in texts for i in grammar.encode(text) if i]
    assert set(tokens) == set(grammar.tokens[1:])
    assert all(texts)
    # Geometric with END probability 0.1, cut at 32 tokens.
    expected = (1 - 0.9**32) / 0.1
    assert abs(len(tokens) / 2000 - expected) < 0.7
    assert abs(tokens.count("g1") / len(tokens) - 1 / 22) < 0.01


def test_seeds_reproduce():
    grammar = Grammar()
    first, second = np.random.default_rng(5), np.random.default_rng(5)
    assert [grammar.sample(first) for _ in range(9)] == [grammar.sample(second) for _ in range(9)]
    assert [grammar.sample_charset(first) for _ in range(9)] == [grammar.sample_charset(second) for _ in range(9)]
