import re

import numpy as np
import pytest

from derl_gym.programs import Grammar


class GbnfRecogniser:
    """Just enough of GBNF for this grammar: literals, character classes, groups, alternatives, ``? * +``."""

    def __init__(self, source: str) -> None:
        self.rules = {}
        for line in source.splitlines():
            name, _, body = line.partition("::=")
            tokens = re.findall(r'"[^"]*"|\[[^\]]*\]|[a-z-]+|[()|?*+]', body)
            self.rules[name.strip()] = self._alternatives(tokens)
            assert not tokens

    def _alternatives(self, tokens):
        options = [[]]
        while tokens and tokens[0] != ")":
            token = tokens.pop(0)
            if token == "|":
                options.append([])
                continue
            if token == "(":
                part = ("any", self._alternatives(tokens))
                assert tokens.pop(0) == ")"
            elif token[0] == '"':
                part = ("text", token[1:-1])
            elif token[0] == "[":
                part = ("class", re.compile(token))
            else:
                part = ("rule", token)
            repeat = tokens.pop(0) if tokens and tokens[0] in "?*+" else ""
            options[-1].append((part, repeat))
        return options

    def accepts(self, text: str) -> bool:
        self.seen = {}
        return len(text) in self._rule("root", text, 0)

    def _rule(self, name, text, at):
        if (name, at) not in self.seen:
            self.seen[name, at] = self._any(self.rules[name], text, at)
        return self.seen[name, at]

    def _any(self, options, text, at):
        ends = set()
        for sequence in options:
            here = {at}
            for part, repeat in sequence:
                step = {end for start in here for end in self._part(part, text, start)}
                if repeat in ("*", "+"):
                    fresh = step
                    while fresh:
                        fresh = {end for start in fresh for end in self._part(part, text, start)} - step
                        step = step | fresh
                here = here | step if repeat in ("?", "*") else step
            ends |= here
        return ends

    def _part(self, part, text, at):
        kind, what = part
        if kind == "text":
            return {at + len(what)} if text.startswith(what, at) else set()
        if kind == "class":
            return {at + 1} if at < len(text) and what.match(text[at]) else set()
        return self._rule(what, text, at) if kind == "rule" else self._any(what, text, at)


def lark_recogniser(source: str):
    lark = pytest.importorskip("lark")
    parser = lark.Lark(source, parser="earley")

    def accepts(text: str) -> bool:
        try:
            parser.parse(text)
        except lark.exceptions.LarkError:
            return False
        return True

    return accepts


def in_the_language(grammar: Grammar, text: str) -> bool:
    state = grammar.automaton.start()
    for char in text:
        state = grammar.automaton.advance(state, char)
        if state is None:
            return False
    return grammar.automaton.can_end(state)


@pytest.mark.parametrize(
    "kwargs", [{"k": 4}, {"k": 12}, {"k": 4, "primitives": ("g1", "g3")}, {"k": 4, "max_digits": 1}]
)
@pytest.mark.parametrize("dialect", ["gbnf", "lark"])
def test_ebnf_is_the_language_of_the_mask(kwargs, dialect, walk):
    grammar = Grammar(max_length=20, **kwargs)
    roomy = Grammar(max_length=128, **kwargs)
    source = grammar.ebnf(dialect)
    accepts = GbnfRecogniser(source).accepts if dialect == "gbnf" else lark_recogniser(source)
    rng = np.random.default_rng(0)
    characters = "g0123456789+-*/.()"
    seen = {True: 0, False: 0}
    for _ in range(150):
        text = grammar.decode(walk(grammar, rng))
        assert accepts(text), text
        at = int(rng.integers(len(text)))
        char = characters[rng.integers(len(characters))]
        for changed in (text[:at] + char + text[at + 1 :], text[:at] + text[at + 1 :], text[:at] + char + text[at:]):
            expected = in_the_language(roomy, changed)
            assert accepts(changed) == expected, changed
            seen[expected] += 1
    assert min(seen.values()) > 50


@pytest.mark.parametrize("dialect", ["gbnf", "lark"])
def test_ebnf_at_the_edges(dialect):
    grammar = Grammar(k=4)
    source = grammar.ebnf(dialect)
    accepts = GbnfRecogniser(source).accepts if dialect == "gbnf" else lark_recogniser(source)
    for text in (
        "g1/0",
        "g1/0.000",
        "g1**0",
        "2",
        "(2)*g1",
        "g1**2**3",
        "007*g1",
        "1234*g1",
        "g1--g2",
        "g5",
        "",
        "g1 + g2",
    ):
        assert not accepts(text) and not in_the_language(grammar, text)
    for text in ("-g1", "2*3/4*g1", "1-2+g1/0.001", "g1/(g2-g2)", "((g1))**0.5", "0*g1", "g1/g2/g3", "2/g1*3"):
        assert accepts(text) and in_the_language(grammar, text)


def test_unknown_dialect():
    with pytest.raises(ValueError, match="'gbnf' or 'lark', got 'abnf'"):
        Grammar().ebnf("abnf")  # pyright: ignore[reportArgumentType]
