"""Table 2 of the paper: exact match on GSM8K and MATH of final policies, by reward and training set.

    python benchmarks/paper/table2.py --scale smoke

Five rewards, trained on MATH and on MATH and GSM8K together; every final policy is tested on both.
"""

from __future__ import annotations

from bench import Bench, text
from cells import Cell
from published import TABLE_2, TABLE_2_SOURCE

TASKS = {"MATH": "MATH", "MATH and GSM8K": "MATH-GSM8K"}


def cell(trained_on: str, reward: str) -> Cell:
    """The run directory of a row. DERL-base on MATH is Figure 4's as well, which tests its inner policies."""
    task = TASKS[trained_on]
    if reward == "DERL-base":
        return Cell(task, keep=task == "MATH")
    if reward == "DERL-full":
        return Cell(task, variant="full")
    return Cell(task, program=reward)


def main() -> None:
    """Run, print, write."""
    bench = Bench("table2", __doc__)
    cells = {(on, reward): cell(on, reward) for on, rewards in TABLE_2.items() for reward in rewards}
    bench.run(finals=cells.values())
    rows = [{"trained_on": on, **bench.row(name, one, TABLE_2[on][name])} for (on, name), one in cells.items()]
    bench.table(
        "Table 2: exact match, %",
        ("trained on", "reward", "GSM8K published", "GSM8K ours", "MATH published", "MATH ours", "programs"),
        [
            (
                row["trained_on"],
                row["row"],
                row["published"]["gsm8k"],
                text(row["ours"].get("gsm8k")),
                row["published"]["math"],
                text(row["ours"].get("math")),
                row["missing"] or " -> ".join(row["programs"]),
            )
            for row in rows
        ],
        f"published: {TABLE_2_SOURCE}; Qwen2.5-3B, mean over three seeds\nours: {bench.seeds}",
    )
    bench.end({"source": TABLE_2_SOURCE, "rows": rows})


if __name__ == "__main__":
    main()
