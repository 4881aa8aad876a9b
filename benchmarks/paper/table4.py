"""Table 4 of the paper with Figures 3 and 5, on GSM8K: who proposes, which primitives there are, how many programs.

    python benchmarks/paper/table4.py --scale smoke

Final policies of the outcome and average rewards, of DERL-base, of a prompted proposer (RLAIF) and of random search
from the initial proposer; of DERL-base with a primitive removed or flipped, and with groups of 4, 6 and 8. Figure 3 is
the mean test accuracy of the inner policies that each outer step's proposals have trained, tested after the searches.
Random search draws under the grammar's mask, since the paper's draws valid programs; DERL under the paper's mask.
"""

from __future__ import annotations

from bench import Bench, text
from cells import Cell, Scale, gsm8k_derl
from published import FIGURE_3, FIGURE_3_SOURCE, GROUP_SIZES, GROUP_SIZES_SOURCE, TABLE_4, TABLE_4_SOURCE

from derl_gym.report.runs import load_runs
from derl_gym.report.summary import test_curve


def cells(scale: Scale) -> dict[str, Cell]:
    """The run directories of Table 4's rows."""
    base = gsm8k_derl(scale)
    found = {
        "outcome": Cell("GSM8K", program="outcome"),
        "average": Cell("GSM8K", program="average"),
        "DERL-base": base,
        "prompted (RLAIF)": Cell("GSM8K", agent="prompted", outer_steps=base.outer_steps, keep=True),
        "random search": Cell("GSM8K", agent="random", outer_steps=base.outer_steps, keep=True),
        "DERL-base, flip g2": gsm8k_derl(scale, flip="g2"),
    }
    return found | {f"DERL-base, remove {g}": gsm8k_derl(scale, without=g) for g in ("g2", "g3", "g4")}


def main() -> None:
    """Run, print, write."""
    bench = Bench("table4", __doc__)
    named = cells(bench.scale)
    usual = bench.runs.loop(named["DERL-base"]).settings.group_size
    sizes = {n: named["DERL-base"] if n == usual else gsm8k_derl(bench.scale, group_size=n) for n in GROUP_SIZES}
    curves = {name: named[name] for name in FIGURE_3}
    bench.run(finals=[*named.values(), *sizes.values()], analysed=curves.values())
    rows = [bench.row(name, cell, TABLE_4[name]) for name, cell in named.items()]
    rows += [bench.row(f"DERL-base, n={n}", cell, GROUP_SIZES[n]) for n, cell in sizes.items()]
    bench.table(
        "Table 4 and Figure 5: exact match on GSM8K of the final policy, %",
        ("row", "published", "ours", "programs"),
        [
            (
                row["row"],
                " to ".join(map(str, row["published"])) if isinstance(row["published"], tuple) else row["published"],
                text(row["ours"].get("gsm8k")),
                row["missing"] or " -> ".join(row["programs"]),
            )
            for row in rows
        ],
        f"published: {TABLE_4_SOURCE}; n: {GROUP_SIZES_SOURCE}; Qwen2.5-1.5B\nours: {bench.seeds}",
    )
    ours = {name: curve(bench, cell) for name, cell in curves.items()}
    steps = range(max(map(len, [*FIGURE_3.values(), *ours.values()])))
    bench.table(
        "Figure 3: mean test accuracy of the inner policies per outer step, %",
        ("outer step", *(f"{name}, {whose}" for name in FIGURE_3 for whose in ("published", "ours"))),
        [(step, *(at(values, step) for name in FIGURE_3 for values in (FIGURE_3[name], ours[name]))) for step in steps],
        f"published: {FIGURE_3_SOURCE}; ours: programs without a policy (invalid) do not count",
    )
    figure = {name: {"published": FIGURE_3[name], "ours": ours[name]} for name in FIGURE_3}
    bench.end({"source": TABLE_4_SOURCE, "rows": rows, "figure_3": figure, "figure_3_source": FIGURE_3_SOURCE})


def curve(bench: Bench, cell: Cell) -> list[float | None]:
    """Mean test accuracy per outer step in percent; empty where the search did not come about."""
    if cell in bench.missing:
        return []
    found = test_curve(load_runs([bench.runs.folder(cell)]))
    return [
        100 * found[step][1] if step in found else None for step in range(bench.runs.loop(cell).settings.outer_steps)
    ]


def at(values: list[float | None] | tuple[float, ...], step: int) -> str | None:
    """A curve's value for the table."""
    value = values[step] if step < len(values) else None
    return None if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
