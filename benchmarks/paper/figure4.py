"""Figure 4 of the paper: validation and test rise together over outer steps.

    python benchmarks/paper/figure4.py --scale smoke

Mean validation and test score of the inner policies of each outer step, DERL-base on ALFWorld L2, GSM8K and MATH. The
policies are tested after the search, which sees no test score. At paper scale the policy on GSM8K is the 3B one: the
published accuracies are those of Table 2's size.
"""

from __future__ import annotations

from bench import Bench
from cells import Cell, alfworld_derl, gsm8k_derl
from published import FIGURE_4, FIGURE_4_SOURCE

from derl_gym.report.runs import load_runs
from derl_gym.report.summary import test_curve

KINDS = ("validation", "test")


def main() -> None:
    """Run, print, write."""
    bench = Bench("figure4", __doc__)
    large = Cell("GSM8K", policy="Qwen/Qwen2.5-3B", keep=True)
    cells = {
        "ALFWorld (L2)": alfworld_derl(bench.scale),
        "GSM8K": large if bench.scale == "paper" else gsm8k_derl(bench.scale),
        "MATH": Cell("MATH", keep=True),
    }
    bench.run(analysed=cells.values())
    rows = []
    for name, published in FIGURE_4.items():
        found: dict[int, tuple[float, float]] = {}
        if cells[name] not in bench.missing:
            found = test_curve(load_runs([bench.runs.folder(cells[name])]))
        ours = {kind: {step: 100 * pair[i] for step, pair in found.items()} for i, kind in enumerate(KINDS)}
        rows.append({**bench.row(name, cells[name], published), "ours": ours})
        bench.table(
            f"Figure 4, {name}: mean score of an outer step's inner policies, %",
            ("outer step", *(f"{kind}, {whose}" for kind in KINDS for whose in ("published", "ours"))),
            [
                (
                    step,
                    *(
                        value if value is None else f"{value:.1f}"
                        for kind in KINDS
                        for value in (dict(enumerate(published[kind])).get(step), ours[kind].get(step))
                    ),
                )
                for step in range(max(len(published["test"]), len(found)))
            ],
            "\n".join(filter(None, (f"published: {FIGURE_4_SOURCE}", rows[-1]["missing"]))),
        )
    bench.end({"source": FIGURE_4_SOURCE, "rows": rows})


if __name__ == "__main__":
    main()
