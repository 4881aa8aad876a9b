r"""Answers to mathematical problems: find the one that an output commits to, and tell whether it is right.

``extract`` reads outputs, ``compare`` compares two answers by exact rules and leaves the rest to math-verify, which
``checker`` keeps in a child process (``worker``). Importing this loads neither sympy nor math-verify.
"""

from derl_gym.tasks.answers.checker import unfinished
from derl_gym.tasks.answers.compare import equal
from derl_gym.tasks.answers.extract import boxed, final_answer, mentions

__all__ = ["boxed", "equal", "final_answer", "mentions", "unfinished"]
