"""RewardProgram: a parsed, immutable Meta-Reward R = f(g1, ..., gk) (paper section 3.2).

A thin face over parse.py, evaluate.py and analysis.py. It knows nothing about masks: see grammar.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from derl_gym.programs import analysis
from derl_gym.programs.evaluate import Floats, check_columns, evaluate
from derl_gym.programs.parse import Instruction, parse

if TYPE_CHECKING:
    from derl_gym.programs.analysis import Analysis, Domain


@dataclasses.dataclass(frozen=True, repr=False)
class RewardProgram:
    """A reward program. Make one with :meth:`parse`.

    Example:
        >>> p = RewardProgram.parse("g1+(g2*(g3/2))-(g4/3)", k=4)
        >>> p([[1.0, 1.0, 0.5, 0.0]])
        array([1.25])

    Attributes:
        text: The program without spaces.
        k: Number of primitives; ``G`` has that many columns.
        names: The primitives that it uses, in order of their number.
        code: Postfix code.
    """

    text: str
    k: int
    names: tuple[str, ...] = dataclasses.field(compare=False)
    code: tuple[Instruction, ...] = dataclasses.field(compare=False)

    @classmethod
    def parse(
        cls, text: str, k: int = 4, primitives: Sequence[str] | None = None, max_length: int | None = None
    ) -> RewardProgram:
        """Parse a text over the alphabet of the grammar.

        The rules are Python's, so ``.5``, ``5.`` and ``g2--g3`` are fine, with float64 numbers throughout. A
        text without primitives parses: it is a constant.

        Args:
            text: The program, of at most 512 characters. Spaces may stand where Python lets them.
            k: Number of primitives g1..gk.
            primitives: Names that may be used, for the ablations that remove one; ``None``: all k.
            max_length: Longest program in tokens of the alphabet; ``None``: no limit.

        Raises:
            InvalidProgram: with what is wrong and where.
        """
        code = parse(text, k, primitives, max_length)
        used = sorted({int(step.value) for step in code if step.op == "name"})
        return cls(text.replace(" ", ""), k, tuple(f"g{i + 1}" for i in used), code)

    def __call__(self, G: Any) -> Floats:
        """Rewards of N rollouts.

        Equal to Python's float arithmetic bit for bit in ``+ - * /``, and within 4 ulp in ``**``.

        Args:
            G: Primitive values, shape (N, k). All k columns, also when fewer names may be used.

        Returns:
            float64 of shape (N,).

        Raises:
            UndefinedReward: when an operation divides by zero, overflows or leaves the real numbers in any
                row, with the reason and the first such row.
            ValueError: when ``G`` has another shape or is not finite.
        """
        return evaluate(self.code, check_columns(G, self.k))

    def analyse(self, primitives: Sequence[Domain], states: Any = None) -> Analysis:
        """Structure, bounds and defects: see :func:`derl_gym.programs.analysis.analyse`."""
        return analysis.analyse(self.code, primitives, states)

    def equivalence_key(self, states: Any) -> str:
        """Equal for two programs exactly when GRPO sees the same rewards.

        See :func:`derl_gym.programs.analysis.equivalence_key`.

        Args:
            states: Shape (S, k), from :func:`derl_gym.programs.states_of`.
        """
        return analysis.equivalence_key(self.code, check_columns(states, self.k))

    def latex(self) -> str:
        """The program as a LaTeX formula, without dollar signs."""
        stack: list[tuple[str, int]] = []
        for op, value, source in self.code:
            if op == "name":
                stack.append((f"g_{{{int(value) + 1}}}", _ATOM))
            elif op == "const":
                stack.append((source, _ATOM))
            elif op == "neg":
                stack.append(("-" + _wrap(stack.pop(), _PRODUCT), _SUM))
            else:
                right, left = stack.pop(), stack.pop()
                if op in "+-":
                    stack.append((f"{left[0]} {op} {_wrap(right, _PRODUCT)}", _SUM))
                elif op == "*":
                    stack.append((rf"{_wrap(left, _PRODUCT)} \cdot {_wrap(right, _PRODUCT)}", _PRODUCT))
                elif op == "/":
                    stack.append((rf"\frac{{{left[0]}}}{{{right[0]}}}", _POWER))
                else:
                    stack.append((f"{_wrap(left, _ATOM)}^{{{right[0]}}}", _POWER))
        return stack.pop()[0]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"RewardProgram({self.text!r}, k={self.k})"


_SUM, _PRODUCT, _POWER, _ATOM = range(4)


def _wrap(part: tuple[str, int], least: int) -> str:
    text, precedence = part
    return text if precedence >= least else rf"\left({text}\right)"
