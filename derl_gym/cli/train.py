"""``derl-gym train``: the final policy, and its one look at the test split."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from derl_gym.cli.command import Command, Failed, Folder, Settings, check_packages, make_envs, new_folder, pairs
from derl_gym.cli.programs import task_of
from derl_gym.cli.search import Plan, finished, refuse_comparison
from derl_gym.envs.outer_loop import InfrastructureFailure, OuterLoop
from derl_gym.protocol import (
    Final,
    TestAlreadyOpened,
    already_tested,
    final_config,
    length_of,
    named_program,
    select,
    settings_of,
    train_final,
)
from derl_gym.report.estimates import estimate
from derl_gym.report.runs import SEARCH_FILE
from derl_gym.trials.ledger import Ledger


@dataclasses.dataclass
class Train(Command):
    """Train fresh policies on the full training set and evaluate each once on the test split.

    Either with given programs (ENV --program P), or with what a search found (--run DIR).
    """

    env: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = None
    """Id of the environment, with --program."""
    program: tuple[str, ...] = ()
    """The reward program, or outcome, outcome+format or average. Several: ONE policy, trained with each in turn (as
    DERL-full is); for separate baselines run the command once each."""
    search: Annotated[Path | None, tyro.conf.arg(name="run", metavar="DIR")] = None
    """Run directory of a search: its program is selected, and the results go there."""
    rule: Literal["last", "best"] | None = None
    """Which of the search's programs: the best of the last outer step, or the best over all. Without it, as in the
    paper: best for the agent random, last for the others."""
    seeds: int = 1
    """Final policies, each with another seed. Seeds that are done already are not trained again."""
    first_seed: int = 0
    """The first of the seeds; the others follow."""
    again: tyro.conf.FlagCreatePairsOff[bool] = False
    """Train all seeds, done already or not: a second look at the test split, which is recorded as one."""
    out: Folder = None
    """Run directory, with --program. Without it: a new one under runs/."""
    settings: tyro.conf.OmitArgPrefixes[Settings] = dataclasses.field(default_factory=Settings)

    def run(self) -> int:
        """Train, test and print the scores."""
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, not {self.seeds}")
        if (self.search is None) == (self.env is None) or (self.env is None) == bool(self.program):
            raise ValueError("train what? Either ENV --program P, or --run DIR")
        self._refuse_ignored()
        seeds = list(range(self.first_seed, self.first_seed + self.seeds))
        console = Console(stderr=True, highlight=False)
        with self._ledger() as ledger:
            programs = self._programs(ledger)
            if self.search is not None and not finished(self.search):
                console.print("the search is not finished: its complete outer steps alone are selected from")
            inner = pairs(self.settings.inner, "--inner")
            done = {} if self.again else already_tested(ledger, programs, seeds)
            if rest := [seed for seed in seeds if seed not in done]:
                if done:
                    console.print(f"seed {_listed(done)} {'is' if len(done) == 1 else 'are'} done already")
                what = f"final training with {' -> '.join(programs)}, seed {_listed(rest)}"
                console.print(f"{what}: {_length(ledger, inner)}", markup=False, soft_wrap=True)
            try:
                with console.status("training"):
                    finals = train_final(
                        ledger,
                        programs,
                        seeds,
                        inner=inner,
                        workers=self.settings.workers,
                        pool=self.settings.pool or "processes",
                        again=self.again,
                    )
            except InfrastructureFailure as error:
                where = "" if self.search is not None else f" with --out {ledger.run_dir}"
                raise Failed(f"{error}; the same command{where} trains what is not done yet") from error
            except TestAlreadyOpened as error:
                raise Failed(str(error)) from error
            _print(finals)
            print(f"results: {ledger.run_dir}")
        return 0

    def _refuse_ignored(self) -> None:
        if self.search is None:
            if self.rule is not None:
                raise ValueError("--rule selects among a search's programs: it goes with --run DIR")
            return
        ignored = [name for name in self.settings.to_dict() if name not in ("inner", "workers", "pool")]
        if flags := ", ".join(f"--{name.replace('_', '-')}" for name in ignored):
            raise ValueError(f"--run takes its settings from the search: leave out {flags}")
        if self.out is not None:
            raise ValueError("--run writes into the search's run directory: leave out --out")

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        if self.search is not None:
            refuse_comparison(self.search)
            check_packages(*(["ray"] if self.settings.pool == "ray" else []))
            with Ledger(self.search) as ledger:
                yield ledger
            return
        assert self.env is not None
        envs = make_envs(self.env, self.settings.to_dict(), self.out or new_folder(self.env, "train"))
        try:
            world: Any = envs.unwrapped
            yield world.loop.ledger
        finally:
            envs.close()

    def _programs(self, ledger: Ledger) -> list[str]:
        if self.env is None:
            return select(ledger, self.rule or paper_rule(ledger.run_dir))
        task = task_of(self.env, task_options=self.settings.to_dict().get("task_options"))
        names = [primitive.name for primitive in task.primitives]
        return [named_program(program, names) for program in self.program]


def _length(ledger: Ledger, inner: dict[str, Any]) -> str:
    """How long every stage is: ``"15 epochs"``, ``"2 epochs with each program"``."""
    loop = OuterLoop(settings_of(ledger.config), lambda: ledger.config["environment"])
    full = ledger.config["variant"] == "full"
    length, unit = length_of(final_config(loop, full, inner))
    return f"{length:g} {unit}" + (" with each program" if full else "")


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))


def _print(finals: Sequence[Final]) -> None:
    """The test scores: seed by seed, then their mean with its interval; by benchmark where there are several."""
    for final in finals:
        notes = [] if final.standard_error is None else [f"standard error {100 * final.standard_error:.1f} %"]
        if len(final.scores) > 1:
            notes += [f"{name} {100 * score:.1f} %" for name, score in final.scores.items()]
        print(
            f"seed {final.seed}: {100 * final.test:.1f} % of the {final.result['n_evaluated']} test examples"
            + (f" ({', '.join(notes)})" if notes else "")
            + f", policy {final.policy}"
        )
    print(f"test score: {estimate([final.test for final in finals])} %")
    names = list(finals[0].scores)
    for name in names if len(names) > 1 else ():
        print(f"  {name}: {estimate([final.scores[name] for final in finals])} %")


def paper_rule(run_dir: Path) -> Literal["last", "best"]:
    """How the paper selects from a search: random search's best over all steps, a learning agent's last step."""
    by_command = (run_dir / SEARCH_FILE).exists()
    return "best" if by_command and Plan.read(run_dir).agent == "random" else "last"
