"""Proposers for derl_gym: agents that write reward programs and learn, or not, from their validation scores.

``AGENTS`` maps names to classes; one of your own goes by ``"my_package.my_module:MyAgent"``. A class is imported when
it is looked up, so that random search needs no torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from derl_agents.base import Agent, SearchResult, search

if TYPE_CHECKING:
    from derl_agents.bandit import Bandit as Bandit
    from derl_agents.cmaes import CMAES as CMAES
    from derl_agents.derl import DERLProposer as DERLProposer
    from derl_agents.elite import EliteDERL as EliteDERL
    from derl_agents.genetic import Genetic as Genetic
    from derl_agents.maskable_ppo import TokenPPO as TokenPPO
    from derl_agents.prompted import PromptedLLM as PromptedLLM
    from derl_agents.random_search import RandomSearch as RandomSearch
    from derl_agents.tpe import TPE as TPE

_WHERE = {
    "random": ("random_search", "RandomSearch"),
    "derl": ("derl", "DERLProposer"),
    "derl-elite": ("elite", "EliteDERL"),
    "prompted": ("prompted", "PromptedLLM"),
    "maskable_ppo": ("maskable_ppo", "TokenPPO"),
    "genetic": ("genetic", "Genetic"),
    "tpe": ("tpe", "TPE"),
    "cmaes": ("cmaes", "CMAES"),
    "bandit": ("bandit", "Bandit"),
}


class _Agents(Mapping[str, type[Agent]]):
    """Agent classes by name, imported on look-up. Those of others are found, and not listed."""

    def __getitem__(self, name: str) -> type[Agent]:
        if ":" in name:
            return _class_of_another(name)
        if name not in _WHERE:
            raise KeyError(f"no agent {name!r}; there are {', '.join(_WHERE)}, and yours as my_module:MyAgent")
        module, attribute = _WHERE[name]
        return getattr(importlib.import_module(f"derl_agents.{module}"), attribute)

    def __contains__(self, name: object) -> bool:
        return name in _WHERE or (isinstance(name, str) and ":" in name)

    def __iter__(self) -> Iterator[str]:
        return iter(_WHERE)

    def __len__(self) -> int:
        return len(_WHERE)


def _class_of_another(name: str) -> type[Agent]:
    """The class behind ``module:Class``; the module may lie in the working directory.

    Raises:
        ImportError: when there is no such module.
        ValueError: when it has no such class, or one that is no agent.
    """
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a script's path has the script's folder instead
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ImportError(f"agent {name}: {error}; it is looked for here and among what is installed") from error
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise ValueError(f"agent {name}: expected a class derived from derl_agents.Agent in {module}, not {found!r}")
    if not isinstance(getattr(found, "name", None), str):
        raise ValueError(f"agent {name}: the class needs a name = '...', which is written into its checkpoints")
    return found


AGENTS: Mapping[str, type[Agent]] = _Agents()


def __getattr__(attribute: str) -> Any:
    for name, (_, known) in _WHERE.items():
        if attribute == known:
            return AGENTS[name]
    raise AttributeError(f"module 'derl_agents' has no attribute {attribute!r}")


__all__ = ["AGENTS", "Agent", "SearchResult", "search"]
