"""Successive halving inside one outer step (Jamieson and Talwalkar 2016; the inner loop of Hyperband), with eta = 2.

All programs of a group train up to a rung and are evaluated there; the better half goes on from where it paused, the
others keep the rung's score. A run that pauses is a trial of its own, so that its score is never taken for that of the
whole training. Nothing is decided but from the ledger's rows: after a kill the same programs go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from derl_gym.envs.identity import fingerprint
from derl_gym.envs.inner_runs import InnerRuns, Trial, trial_folder
from derl_gym.inner.marks import remove_checkpoints
from derl_gym.trials.ledger import PROVENANCE, Ledger

Payload = Callable[[Trial], dict[str, Any]]
"""What :func:`derl_gym.inner.train.run` is given for a trial, trained to its end."""


def shares(rungs: int) -> list[float]:
    """At which shares of a training the rungs are: for 3 of them 1/8, 1/4 and 1/2."""
    return [2.0 ** -(rungs - i) for i in range(rungs)]


def at_rung(trial: Trial, share: float) -> Trial:
    """The trial that pauses after this share of the training; with an identity of its own."""
    return dataclasses.replace(trial, identity=fingerprint({"trial": trial.identity, "until": share}))


def ranking(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The places of rows of trials, the best first: those that scored before all others, the earlier of equals."""

    def key(place: int) -> tuple[bool, float]:
        row = rows[place]
        return row["status"] != "scored", -(row["score"] or 0.0)

    return sorted(range(len(rows)), key=key)


@dataclasses.dataclass(frozen=True)
class Settled:
    """A program that needs no further training.

    Attributes:
        identity: Of its whole training.
        trial: The one that answers it: the rung's, or the whole training's where that ended before the rung.
        row: Of that trial, with the reason why it was stopped.
        family: Identities of trials that reach as far: who has one of them has had this one's inner runs made.
        fetched: Whether the rung's trial came from a shared cache.
    """

    identity: str
    trial: Trial
    row: dict[str, Any]
    family: frozenset[str]
    fetched: bool = False


class Halving:
    """The contest of one outer step's programs.

    Args:
        ledger: Of the search.
        runs: Which look trials up, train and record them.
        rungs: How often the group is halved.
        payload: Of whole trainings.
    """

    def __init__(self, ledger: Ledger, runs: InnerRuns, rungs: int, payload: Payload) -> None:
        self.ledger, self.runs, self.payload = ledger, runs, payload
        self.shares = shares(rungs)

    def family(self, trial: Trial) -> list[str]:
        """The identities that may answer a program, from the first rung's to the whole training's."""
        return [*(at_rung(trial, share).identity for share in self.shares), trial.identity]

    def competes(self, trial: Trial) -> bool:
        """Whether it takes part: all do but those whose whole training is known without a rung's, from a cache."""
        first = self.ledger.trial(self.family(trial)[0])
        ended = first is not None and first["status"] in ("scored", "invalid")
        return ended or self.runs.known(self.ledger, trial) is None

    def run(self, trials: Sequence[Trial], settled: Mapping[str, str], raises: bool) -> Generator[Settled, None, None]:
        """Train from rung to rung; what was not yielded goes on to the end of its training.

        A run that failed (ours) yields as soon as it has, and leaves the contest as its last.

        Args:
            trials: Whole trainings, in the order of their proposals.
            raises: Whether a failure is raised by the caller: then a rung with one decides nothing.
            settled: What the ledger has settled already, of an earlier try: identity of the whole training -> of the
                trial that answered it. That stays as it is.
        """
        entrants, before = list(trials), None
        for share in self.shares:
            rows: dict[str, dict[str, Any]] = {}
            new: dict[str, Trial] = {}
            for trial in entrants:
                rung = at_rung(trial, share)
                if (row := self.runs.known(self.ledger, rung)) is not None:
                    rows[trial.identity] = row
                else:
                    new[rung.identity] = trial
            paused = {identity: at_rung(trial, share) for identity, trial in new.items()}
            payloads = {identity: self._to(trial, before, share) for identity, trial in new.items()}
            with contextlib.closing(self.runs.train(self.ledger, paused, payloads)) as ended:
                for row in ended:
                    trial = new[row["identity"]]
                    rows[trial.identity] = row
                    if row["status"] == "failed":
                        yield Settled(trial.identity, paused[row["identity"]], row, frozenset())
            if raises and any(row["status"] == "failed" for row in rows.values()):
                return
            going: list[Trial] = []
            order = ranking([rows[trial.identity] for trial in entrants])
            better = {entrants[place].identity for place in order[: (len(entrants) + 1) // 2]}
            for place, trial in enumerate(entrants):
                row, rung = rows[trial.identity], at_rung(trial, share)
                family = frozenset(self.family(trial)[self.shares.index(share) :])
                decided = settled.get(trial.identity)
                if row["status"] == "failed":
                    continue
                if not (row["result"] or {}).get("of_steps"):  # nothing was left to train
                    yield Settled(trial.identity, trial, self._whole(trial, row), family, row["seconds"] == 0.0)
                elif decided != rung.identity and (
                    trial.identity in better or decided in family or self.runs.known(self.ledger, trial) is not None
                ):
                    going.append(trial)
                else:
                    remove_checkpoints(trial_folder(self.ledger.run_dir, rung.identity))
                    result = row["result"]
                    reason = (
                        f"stopped at step {result['steps']} of {result['of_steps']}: "
                        f"{_ordinal(order.index(place) + 1)} of {len(entrants)} at the rung"
                    )
                    yield Settled(trial.identity, rung, row | {"reason": reason}, family, row["seconds"] == 0.0)
            entrants, before = going, share

    def to_the_end(self, trial: Trial) -> dict[str, Any]:
        """The payload of a whole training that goes on from its last rung."""
        return self._to(trial, self.shares[-1], None)

    def remove_checkpoints(self, trials: Sequence[Trial]) -> None:
        """Of all their rungs, when the step is over."""
        for trial in trials:
            for identity in self.family(trial)[:-1]:
                remove_checkpoints(trial_folder(self.ledger.run_dir, identity))

    def _to(self, trial: Trial, before: float | None, until: float | None) -> dict[str, Any]:
        payload = self.payload(trial)
        if until is not None:
            payload |= {"until": until, "save_policy": False}
        if before is not None:
            folder = trial_folder(self.ledger.run_dir, at_rung(trial, before).identity)
            payload |= {"continues": str(folder.absolute())}
        return payload

    def _whole(self, trial: Trial, row: dict[str, Any]) -> dict[str, Any]:
        """The row of a whole training that ended before the rung, by a cap or as invalid: with the rung's result."""
        if self.runs.known(self.ledger, trial) is None:
            told = {name: row[name] for name in PROVENANCE if row[name] is not None}
            self.runs.adopt(self.ledger, trial, row["result"] | told)
        whole = self.ledger.trial(trial.identity)
        assert whole is not None
        return whole


def _ordinal(n: int) -> str:
    """``1st``, ``2nd``, ``3rd``, ``11th``."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
