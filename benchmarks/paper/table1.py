"""Table 1 of the paper: success rate on ALFWorld and ScienceWorld of final policies, by reward and level.

    python benchmarks/paper/table1.py --scale smoke

Six rows at three levels each. Every policy is warm-started first. L0 and L1 have the same training games and differ in
those of the test, so that one search serves both: L1's final policies are trained with the programs that L0's search
has selected. They are trained anew all the same, since a run directory has one test split, which is opened once.
"""

from __future__ import annotations

from typing import Literal

from bench import Bench, text
from cells import Cell, Scale, alfworld_derl
from published import TABLE_1, TABLE_1_SOURCE
from text_worlds import LEVELS, WORLDS

LONGER = {"paper": ("steps=150",), "single-gpu": ("steps=90",), "smoke": ()}
"""Scale -> how long baselines train: half as long again as the final policies of RLVMR and DERL (section 4.1)."""


def cell(scale: Scale, world: str, level: str, row: str) -> Cell:
    """The run directory of a row at a level. DERL-base on ALFWorld L2 is that of Figures 4 and 6 as well."""
    task = f"{world}-{level}"
    if row.startswith("DERL"):
        if (row, task) == ("DERL-base", "ALFWorld-L2"):
            return alfworld_derl(scale)
        variant: Literal["base", "full"] = "full" if row == "DERL-full" else "base"
        return Cell(task, variant=variant, found_on=f"{world}-L0" if level == "L1" else "")
    program = "average" if row.startswith("average") else "outcome"
    algorithm = {"GiGPO": ("algorithm=gigpo",), "RLVMR": ("algorithm=rlvmr",)}.get(row, ())
    return Cell(task, program=program, inner=(*algorithm, *(() if row == "RLVMR" else LONGER[scale])))


def main() -> None:
    """Run, print, write."""
    bench = Bench("table1", __doc__, seeds=4, worlds=WORLDS, levels=LEVELS, rows=tuple(TABLE_1))
    worlds, levels, names = bench.arguments.worlds, bench.arguments.levels, bench.arguments.rows
    places = [(row, world, level) for row in names for world in worlds for level in levels]
    cells = {(world, level, row): cell(bench.scale, world, level, row) for row, world, level in places}
    bench.run(finals=cells.values())
    rows = {
        (world, level, row): {
            "world": world,
            "level": level,
            **bench.row(row, one, TABLE_1[row][world][LEVELS.index(level)]),
        }
        for (world, level, row), one in cells.items()
    }
    for world in worlds:
        bench.table(
            f"Table 1, {world}: success rate, %",
            ("reward", *(f"{level} {whose}" for level in levels for whose in ("published", "ours"))),
            [
                (
                    row,
                    *(
                        value
                        for level in levels
                        for found in [rows[world, level, row]]
                        for value in (found["published"], text(found["ours"].get("success")))
                    ),
                )
                for row in names
            ],
            f"published: {TABLE_1_SOURCE}; Qwen2.5-1.5B-Instruct, mean over four seeds\nours: {bench.seeds}",
        )
    found = [
        (world, level, name, row["missing"] or " -> ".join(row["programs"]))
        for (world, level, name), row in rows.items()
        if name.startswith("DERL")
    ]
    if found:
        bench.table("Table 1: programs found", ("world", "level", "reward", "programs"), found, "of L1: L0's search's")
    bench.end({"source": TABLE_1_SOURCE, "rows": list(rows.values())})


if __name__ == "__main__":
    main()
