"""The report's figures, as Plotly figures without a page around them.

Colours of text and grid are set by the page, which knows whether it is light or dark. Every text that a
proposer wrote is escaped: Plotly draws some HTML in hover labels.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from derl_gym.report.comparison import METRICS, Comparison, Metric, Search
from derl_gym.report.estimates import estimate
from derl_gym.report.runs import Row, Run
from derl_gym.report.statistics import profile
from derl_gym.report.summary import (
    STRUCTURES,
    AgentSummary,
    by_label,
    score_curve,
    structure_curve,
    test_curve,
)

PALETTE = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#ec4899", "#84cc16")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")
"""Agents are told apart without colour as well."""
STRUCTURE_COLOURS = {"stable": "#10b981", "unstable": "#f59e0b", "invalid": "#ef4444"}
COST_COLOURS = {
    "inner training": PALETTE[0],
    "validation": PALETTE[2],
    "reference runs": PALETTE[5],
    "processes": "#94a3b8",
    "proposer": PALETTE[1],
}
HOVER_PROGRAMS = 12
LONGEST = 60


def scores_figure(runs: Sequence[Run]) -> go.Figure | None:
    """Mean validation score of the proposals per outer step: a line per agent, a band over its seeds."""
    figure = _figure("outer step", "mean validation score, %")
    for i, (label, group) in enumerate(by_label(runs).items()):
        curve = score_curve(group)
        estimates = [found for means in curve.values() if (found := estimate(means))]
        if not estimates:
            continue
        colour, steps = PALETTE[i % len(PALETTE)], list(curve)
        if any(found.half_width is not None for found in estimates):
            _add_band(figure, steps, [found.band() for found in estimates], colour, label)
        figure.add_scatter(
            x=steps,
            y=[100 * found.mean for found in estimates],
            mode="lines+markers",
            line={"color": colour, "width": 2.5, "dash": DASHES[i % len(DASHES)]},
            marker={"size": 8, "symbol": SYMBOLS[i % len(SYMBOLS)]},
            name=escape(label),
            legendgroup=label,
            text=[_programs(group, step) for step in steps],
            customdata=[str(found) for found in estimates],
            hovertemplate="<b>%{fullData.name}</b>, step %{x}: %{customdata} %<br>%{text}<extra></extra>",
        )
    return _ticked(figure) if figure.data else None


def test_figure(runs: Sequence[Run]) -> go.Figure | None:
    """Validation and test score per outer step, where the inner policies were analysed on the test split."""
    figure = _figure("outer step", "mean score, %")
    for i, (label, group) in enumerate(by_label(runs).items()):
        curve = test_curve(group)
        if len(curve) < 2:
            continue
        for name, column, dash in (("validation", 0, "dot"), ("test", 1, "solid")):
            figure.add_scatter(
                x=list(curve),
                y=[100 * pair[column] for pair in curve.values()],
                mode="lines+markers",
                line={"color": PALETTE[i % len(PALETTE)], "dash": dash, "width": 2.5},
                name=f"{escape(label)}, {name}",
                hovertemplate="%{fullData.name}, step %{x}: %{y:.1f} %<extra></extra>",
            )
    return _ticked(figure) if figure.data else None


def anytime_figure(comparison: Comparison) -> go.Figure:
    """Interquartile mean of the best validation score so far over the budget, a band of its 95 % interval."""
    figure = _figure("proposals", "best validation score so far, %")
    for i, (label, curve) in enumerate(comparison.anytime.items()):
        x = list(range(1, len(curve) + 1))
        if not math.isnan(curve[0].low):
            _add_band(figure, x, [(point.low, point.high) for point in curve], PALETTE[i % len(PALETTE)], label)
        figure.add_scatter(
            x=x,
            y=[100 * point.value for point in curve],
            mode="lines",
            line={"color": PALETTE[i % len(PALETTE)], "width": 2.5, "dash": DASHES[i % len(DASHES)]},
            name=escape(label),
            legendgroup=label,
            customdata=[point.percent() for point in curve],
            hovertemplate="<b>%{fullData.name}</b> after %{x}: %{customdata} %<extra></extra>",
        )
    return _ticked(figure)


def profile_figure(searches: Sequence[Search], metric: Metric) -> go.Figure:
    """Performance profile: the share of an agent's searches above each score."""
    figure = _figure(f"{METRICS[metric]}, %", "searches above it, %")
    by_agent: dict[str, list[float]] = {}
    for search in searches:
        by_agent.setdefault(search.label, []).append(getattr(search, metric))
    top = max(max(values) for values in by_agent.values())
    thresholds = [top * i / 100 for i in range(101)]
    for i, (label, values) in enumerate(by_agent.items()):
        figure.add_scatter(
            x=[100 * threshold for threshold in thresholds],
            y=[100 * share for share in profile(values, thresholds)],
            mode="lines",
            line={
                "color": PALETTE[i % len(PALETTE)],
                "width": 2.5,
                "dash": DASHES[i % len(DASHES)],
                "shape": "hv",
            },
            name=escape(label),
            hovertemplate="<b>%{fullData.name}</b>: %{y:.0f} % above %{x:.1f} %<extra></extra>",
        )
    return figure


def structures_figure(runs: Sequence[Run]) -> go.Figure | None:
    """Shares of stable, unstable and invalid proposals over outer steps, one panel per agent."""
    curves = {label: structure_curve(group) for label, group in by_label(runs).items()}
    curves = {label: curve for label, curve in curves.items() if curve}
    if not curves:
        return None
    height = 90 + 200 * len(curves)
    panels = make_subplots(
        rows=len(curves), cols=1, subplot_titles=list(map(escape, curves)), vertical_spacing=64 / height
    )
    figure = _styled(panels, height=height)
    for row, curve in enumerate(curves.values(), start=1):
        for structure in STRUCTURES:
            figure.add_bar(
                x=list(curve),
                y=[100 * shares[structure] for shares in curve.values()],
                name=structure,
                legendgroup=structure,
                showlegend=row == 1,
                marker={"color": STRUCTURE_COLOURS[structure]},
                hovertemplate="step %{x}: %{y:.0f} % " + structure + "<extra></extra>",
                row=row,
                col=1,
            )
    figure.update_layout(barmode="stack", bargap=0.15)
    figure.update_yaxes(range=[0, 100], title="proposals, %")
    figure.update_xaxes(dtick=_tick(max(max(curve) for curve in curves.values())))
    figure.update_xaxes(title="outer step", row=len(curves), col=1)
    return figure


def learning_figure(best: Sequence[tuple[str, Row]]) -> go.Figure | None:
    """Mean of g1 over an inner run's rollouts, step by step.

    Args:
        best: (agent, trial) pairs, the best first.
    """
    figure = _figure("optimiser step of the inner run", "rollouts with g1, %")
    for i, (label, trial) in enumerate(best):
        curve = [row for row in (trial["result"] or {}).get("curve") or [] if "g1" in row]
        if not curve:
            continue
        others = [
            "<br>".join(f"{escape(name)} {value:.3g}" for name, value in row.items() if name != "g1") for row in curve
        ]
        figure.add_scatter(
            x=list(range(1, len(curve) + 1)),
            y=[100 * row["g1"] for row in curve],
            mode="lines",
            line={"color": PALETTE[i % len(PALETTE)], "width": 2},
            name=f"{100 * trial['score']:.1f} %  {_short(trial['program'])} ({escape(label)})",
            text=others,
            hovertemplate="step %{x}: g1 %{y:.1f} %<br>%{text}<extra></extra>",
        )
    curves = tuple(figure.data)
    figure.update_layout(height=360 + 22 * len(curves))
    return _ticked(figure) if curves else None


def cost_figure(summaries: Sequence[AgentSummary]) -> go.Figure | None:
    """Where the seconds went, a bar per agent."""
    if not any(summary.total.seconds for summary in summaries):
        return None
    figure = _styled(go.Figure(), height=150 + 46 * len(summaries))
    labels = [escape(summary.label) for summary in summaries]
    for name, colour in COST_COLOURS.items():
        costs = [summary.parts.get(name) for summary in summaries]
        if not any(costs):
            continue
        figure.add_bar(
            y=labels,
            x=[0.0 if cost is None else cost.seconds for cost in costs],
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate="%{y}: %{x:.1f} s of " + name + "<extra></extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_yaxes(autorange="reversed", ticksuffix="  ", showgrid=False, automargin=True)
    figure.update_xaxes(title="seconds")
    return figure


def _add_band(
    figure: go.Figure, x: Sequence[int], bands: Sequence[tuple[float, float]], colour: str, group: str
) -> None:
    """An agent's interval around its line, in percent."""
    figure.add_scatter(
        x=[*x, *x[::-1]],
        y=[100 * high for _, high in bands] + [100 * low for low, _ in bands[::-1]],
        fill="toself",
        fillcolor=_faded(colour),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=group,
    )


def _figure(x: str, y: str) -> go.Figure:
    figure = _styled(go.Figure(), height=400)
    figure.update_xaxes(title=x)
    figure.update_yaxes(title=y, rangemode="tozero")
    return figure


def _styled(figure: go.Figure, height: int) -> go.Figure:
    return figure.update_layout(
        template="none",
        dragmode=False,  # a finger on a figure scrolls the page
        height=height,
        margin={"l": 56, "r": 12, "t": 44, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        hoverlabel={"align": "left", "namelength": -1},
    )


def _programs(runs: Sequence[Run], step: int) -> str:
    rows = [row for run in runs for group in run.steps().get(step, []) for row in group]
    rows.sort(key=lambda row: -(row["score"] or 0.0))
    verdicts = [f"{100 * row['score']:.1f}" if row["status"] == "scored" else row["status"] for row in rows]
    lines = [
        f"{verdict}  {_short(row['program'])}" for verdict, row in zip(verdicts, rows[:HOVER_PROGRAMS], strict=False)
    ]
    if len(rows) > HOVER_PROGRAMS:
        rest = statistics.fmean(row["score"] or 0.0 for row in rows[HOVER_PROGRAMS:])
        lines.append(f"and {len(rows) - HOVER_PROGRAMS} more, {100 * rest:.1f} on average")
    return "<br>".join(lines)


def _short(program: str) -> str:
    return escape(program if len(program) <= LONGEST else program[: LONGEST - 1] + "…") or "(empty)"


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _ticked(figure: go.Figure) -> go.Figure:
    """Ticks at whole steps only, however short the search."""
    curves: Any = figure.data
    return figure.update_xaxes(tick0=0, dtick=_tick(max(max(curve.x) for curve in curves)))


def _tick(last: int) -> int:
    """1, 5, 20, 100, 500, 2000, ..: at most 20 ticks."""
    steps = itertools.accumulate(itertools.cycle((5, 4, 5)), int.__mul__, initial=1)
    return next(step for step in steps if last <= 20 * step)
