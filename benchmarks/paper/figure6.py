"""Figure 6 of the paper: which structures the proposer's programs have, per outer step of a run on ALFWorld L2.

    python benchmarks/paper/figure6.py --scale smoke

Ours is the search with DERL-base on ALFWorld L2 that Table 1 and Figure 4 use too.
"""

from __future__ import annotations

from bench import Bench
from cells import alfworld_derl
from published import FIGURE_6, FIGURE_6_SOURCE

from derl_gym.report.runs import load_runs
from derl_gym.report.summary import structure_curve


def main() -> None:
    """Run, print, write."""
    bench = Bench("figure6", __doc__)
    cell = alfworld_derl(bench.scale)
    bench.run(searched=[cell])
    ours = {} if cell in bench.missing else structure_curve(load_runs([bench.runs.folder(cell)]))
    lengths = [len(shares) for shares in FIGURE_6.values()]
    bench.table(
        "Figure 6: structures of the proposed programs, % of an outer step's",
        ("outer step", *(f"{name}, {whose}" for name in FIGURE_6 for whose in ("published", "ours"))),
        [
            (
                step,
                *(
                    value if value is None else f"{value:.1f}"
                    for name in FIGURE_6
                    for value in (
                        dict(enumerate(FIGURE_6[name])).get(step),
                        100 * ours[step][name] if step in ours else None,
                    )
                ),
            )
            for step in range(max(*lengths, len(ours)))
        ],
        f"published: {FIGURE_6_SOURCE}\nours: DERL-base on ALFWorld L2; programs that do not parse are invalid",
    )
    row = bench.row("DERL-base on ALFWorld (L2)", cell, FIGURE_6)
    row["ours"] = {name: [100 * shares[name] for shares in ours.values()] for name in FIGURE_6}
    bench.end({"source": FIGURE_6_SOURCE, "rows": [row]})


if __name__ == "__main__":
    main()
