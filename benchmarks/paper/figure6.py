"""Figure 6 of the paper: which structures the proposer's programs have, per outer step.

    python benchmarks/paper/figure6.py --scale smoke

The published shares are of a run on ALFWorld L2, ours of the search with DERL-base on GSM8K that Table 4 uses too:
another task, so that the two can be compared in direction alone. The script runs no search on DERL-ALFWorld-L2-v0.
"""

from __future__ import annotations

from bench import Bench
from cells import gsm8k_derl
from published import FIGURE_6, FIGURE_6_SOURCE

from derl_gym.report.runs import load_runs
from derl_gym.report.summary import structure_curve


def main() -> None:
    """Run, print, write."""
    bench = Bench("figure6", __doc__)
    cell = gsm8k_derl(bench.scale)
    bench.run(searched=[cell])
    ours = structure_curve(load_runs([bench.runs.folder(cell)]))
    lengths = [len(shares) for shares in FIGURE_6.values()]
    bench.table(
        "Figure 6: structures of the proposed programs, % of an outer step's",
        ("outer step", *(f"{name}, {whose}" for name in FIGURE_6 for whose in ("published, ALFWorld", "ours, GSM8K"))),
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
        f"published: {FIGURE_6_SOURCE}\nours: DERL-base on GSM8K, another task; programs that do not parse are invalid",
    )
    row = bench.row("DERL-base on GSM8K", cell, FIGURE_6)
    row["ours"] = {name: [100 * shares[name] for shares in ours.values()] for name in FIGURE_6}
    bench.end({"source": FIGURE_6_SOURCE, "rows": [row]})


if __name__ == "__main__":
    main()
