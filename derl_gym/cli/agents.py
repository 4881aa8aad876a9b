"""``derl-gym agents``: who can propose, and with which options."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from derl_gym.cli.command import Command


@dataclasses.dataclass
class Agents(Command):
    """List the agents with their options and defaults."""

    def run(self) -> int:
        """Print the list."""
        from derl_agents import AGENTS

        console = Console(highlight=False)
        for name in AGENTS:
            try:
                agent = AGENTS[name]
            except ImportError as error:
                console.print(f"[bold]{name}[/]: not here, {escape(str(error))}")
                continue
            console.print(f"[bold]{name}[/]: {escape(_first_line(agent.__doc__))}")
            described = descriptions(agent.Options)
            table = Table(box=box.SIMPLE_HEAD, show_header=False)
            for field in dataclasses.fields(agent.Options):
                factory = field.default_factory
                default = field.default if factory is dataclasses.MISSING else factory()
                table.add_row(field.name, escape(repr(default)), escape(described.get(field.name, "")))
            if table.row_count:
                console.print(table)
        return 0


def descriptions(options: type) -> dict[str, str]:
    """The strings below a dataclass's fields, by field, each as one line."""
    found: dict[str, str] = {}
    for kind in reversed(options.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
