"""ALFWorld games made here: small rooms, all six types, all solvable, for trying things out without the published data.

    python -m derl_gym.tasks.worlds.alfworld_games FOLDER

They consist of the domain, the grammar and the goals that the package alfworld brings, and of a room that is drawn at
random. They are easier than the published games, and no benchmark. Play them with ``check_data=False``.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from derl_gym.tasks.worlds.alfworld_data import GAME_FILE, PARTS, TYPES

RECEPTACLES = {
    "CounterTop": 2,
    "DiningTable": 1,
    "SideTable": 1,
    "Desk": 1,
    "Shelf": 2,
    "GarbageCan": 1,
    "SinkBasin": 1,
    "Cabinet": 2,
    "Drawer": 2,
    "Fridge": 1,
    "Microwave": 1,
}
"""Type -> how many a room has."""
OPENABLE = ("Cabinet", "Drawer", "Fridge", "Microwave")
GOALS = ("CounterTop", "DiningTable", "SideTable", "Desk", "Shelf", "Cabinet", "Drawer", "GarbageCan")
OBJECTS = {
    "food": ("Apple", "Potato", "Tomato", "Egg"),
    "dish": ("Mug", "Cup", "Plate"),
    "thing": ("Book", "Pen", "CD"),
}
ABLE = {
    "pick": ("food", "dish", "thing"),
    "two": ("food", "dish", "thing"),
    "look": ("thing", "dish"),
    "clean": ("food", "dish"),
    "heat": ("food", "dish"),
    "cool": ("food", "dish"),
}
"""Type of game -> the kinds of objects that it can be about."""
MACHINES = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
UNSEEN = {"Desk", "Drawer", "Pen", "Cup", "Egg"}
"""Goals and objects of valid_unseen's games alone."""


def generate(
    folder: Path,
    counts: dict[str, int],
    seed: int = 0,
    kinds: Sequence[str] = tuple(TYPES.values()),
    receptacles: Mapping[str, int] = RECEPTACLES,
) -> None:
    """Write games below a folder, laid out like the published ones.

    Args:
        folder: Gets the parts as folders.
        counts: Part -> games of each type.
        seed: Of all that is drawn.
        kinds: Types of games.
        receptacles: What a room has. All goals have to be among them, and the machines of the types.

    Raises:
        ImportError: alfworld is not installed.
    """
    try:
        from alfworld.gen.goal_library import gdict  # pyright: ignore[reportMissingImports]
        from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"ALFWorld is not installed: pip install 'derl-gym[alfworld]' ({error})") from error
    domain, grammar = Path(ALFRED_PDDL_PATH).read_text(), Path(ALFRED_TWL2_PATH).read_text()
    for part, count in counts.items():
        for long_name, kind in TYPES.items():
            for number in range(count if kind in kinds else 0):
                draw = random.Random(f"{seed} {part} {kind} {number}")
                room = _Room(draw, kind, part == "valid_unseen", receptacles)
                goal = gdict[long_name]
                words = {"obj": room.object, "recep": room.goal, "toggle": "DeskLamp", "mrecep": "None"}
                sentence = draw.choice(goal["templates"]).format(**{k: v.lower() for k, v in words.items()})
                game = {
                    "pddl_domain": domain,
                    "grammar": grammar.replace("UNKNOWN GOAL", sentence),
                    "pddl_problem": room.problem(goal["pddl"].format(**words).replace("#", "-")),
                    "solvable": True,
                    "walkthrough": list(room.walkthrough()),
                }
                place = "DeskLamp" if kind == "look" else room.goal
                path = folder / part / f"{long_name}-{room.object}-None-{place}-{number}" / f"trial_{seed}" / GAME_FILE
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(game))


class _Room:
    """A room in which a game of some kind can be won."""

    def __init__(self, draw: random.Random, kind: str, unseen: bool, receptacles: Mapping[str, int]) -> None:
        self.kind = kind
        kinds = {name: able for able, names in OBJECTS.items() for name in names}
        self.object = draw.choice([o for o in kinds if kinds[o] in ABLE[kind] and (o in UNSEEN) == unseen])
        self.goal = draw.choice([goal for goal in GOALS if (goal in UNSEEN) == unseen])
        self.receptacles = [f"{name}_{i}" for name, n in receptacles.items() for i in range(1, n + 1)]
        elsewhere = [place for place in self.receptacles if _type(place) not in (self.goal, *MACHINES.values())]
        self.target = draw.choice([place for place in self.receptacles if _type(place) == self.goal])
        copies = {name: 1 for name in draw.sample(sorted(kinds), 4)} | {self.object: 2 if kind == "two" else 1}
        # Wanted objects lie anywhere but at their goal, in the closed as well as in the open.
        self.where = {f"{name}_{i}": draw.choice(elsewhere) for name, n in copies.items() for i in range(1, n + 1)}
        self.where["DeskLamp_1"] = draw.choice([place for place in elsewhere if _type(place) not in OPENABLE])
        self.kinds, self.receptacle_types = kinds, tuple(receptacles)

    def problem(self, goal: str) -> str:
        """The room as a PDDL problem that ends with the goal."""
        names = {name: _identifier(name) for name in (*self.receptacles, *self.where)}
        objects = ["agent1 - agent", "loc_start - location"]
        objects += [f"loc_{i} - location" for i in range(len(self.receptacles))]
        objects += [f"{names[r]} - receptacle" for r in self.receptacles] + [f"{names[o]} - object" for o in self.where]
        objects += [f"{name}Type - rtype" for name in self.receptacle_types]
        objects += [f"{name}Type - otype" for name in (*self.kinds, "DeskLamp")]
        facts = ["atLocation agent1 loc_start"]
        for i, place in enumerate(self.receptacles):
            facts += [
                f"receptacleType {names[place]} {_type(place)}Type",
                f"receptacleAtLocation {names[place]} loc_{i}",
            ]
            facts += [f"openable {names[place]}"] if _type(place) in OPENABLE else []
        for name, place in self.where.items():
            facts += [f"objectType {names[name]} {_type(name)}Type", f"inReceptacle {names[name]} {names[place]}"]
            facts += [f"objectAtLocation {names[name]} loc_{self.receptacles.index(place)}"]
            if _type(name) == "DeskLamp":
                facts += [f"toggleable {names[name]}"]
                continue
            facts += [f"pickupable {names[name]}"]
            able = self.kinds[_type(name)]
            facts += [f"{word} {names[name]}" for word in ("cleanable", "heatable", "coolable") if able in ABLE["heat"]]
        facts += [f"canContain {place}Type {name}Type" for place in self.receptacle_types for name in self.kinds]
        listed, stated = "\n".join(objects), "\n".join(f"({fact})" for fact in facts)
        return f"(define (problem made)\n(:domain alfred)\n(:objects\n{listed}\n)\n(:init\n{stated}\n)\n{goal}"

    def walkthrough(self) -> Iterator[str]:
        """Commands that win the game."""
        opened: set[str] = set()

        def go(place: str) -> Iterator[str]:
            yield f"go to {self._called(place)}"
            if _type(place) in OPENABLE and place not in opened:
                opened.add(place)
                yield f"open {self._called(place)}"

        for name in [name for name in self.where if _type(name) == self.object]:
            yield from go(self.where[name])
            yield f"take {self._called(name)} from {self._called(self.where[name])}"
            if self.kind == "look":
                # Who is there already cannot go there: it is no command.
                if self.where["DeskLamp_1"] != self.where[name]:
                    yield from go(self.where["DeskLamp_1"])
                yield f"use {self._called('DeskLamp_1')}"
                return
            if self.kind in MACHINES:
                machine = f"{MACHINES[self.kind]}_1"
                yield f"go to {self._called(machine)}"
                yield f"{self.kind} {self._called(name)} with {self._called(machine)}"
            yield from go(self.target)
            yield f"move {self._called(name)} to {self._called(self.target)}"

    def _called(self, name: str) -> str:
        """What the game calls a thing: ALFWorld numbers the things of a type downwards in the order of their names."""
        same = sorted(other for other in (*self.receptacles, *self.where) if _type(other) == _type(name))
        return f"{_type(name).lower()} {len(same) - same.index(name)}"


def _type(name: str) -> str:
    return name.split("_")[0]


def _identifier(name: str) -> str:
    """A name as ALFWorld's own files have it; of the sink's basin the type stands at the end."""
    kind, number = name.split("_")
    return f"Sink_bar_{number}_bar_SinkBasin" if kind == "SinkBasin" else f"{kind}_bar_{number}"


def main() -> None:
    """Write three games of each type to train on and one of each to both test parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=3, help="games of each type in train")
    parser.add_argument("--test", type=int, default=1, help="games of each type in valid_seen and in valid_unseen")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts = {part: arguments.train if part == "train" else arguments.test for part in PARTS}
    generate(arguments.folder, counts, arguments.seed)


if __name__ == "__main__":
    main()
