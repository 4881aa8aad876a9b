"""The report: one HTML file that needs nothing else, no network, no folder beside it.

What the page says is gathered here, how it looks stands in ``report.html.j2``. Needs the extra ``report``
(plotly, jinja2). Whatever a proposer wrote is escaped by the template.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

import derl_gym
from derl_gym.report import comparison, figures
from derl_gym.report.comparison import Metric
from derl_gym.report.estimates import Estimate, duration, estimate, quantity
from derl_gym.report.mathml import mathml
from derl_gym.report.runs import Row, Run, load_runs
from derl_gym.report.summary import by_label, summarise

TOP_PROGRAMS = 8
TOP_CURVES = 5


def render(run_dirs: Sequence[str | Path | Run], out: str | Path, metric: Metric, against: str | None) -> Path:
    """See :func:`derl_gym.report.write_report`."""
    runs = load_runs(run_dirs)
    searches = comparison.searches_of(runs)
    compared = None
    if len({search.label for search in searches}) > 1:
        compared = comparison.compare(searches, metric, against)
    summaries = [summarise(label, group) for label, group in by_label(runs).items()]
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            version=derl_gym.__version__,
            made=datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
            headings=_headings(runs),
            settings=_settings(runs),
            folders=[str(run.folder) for run in runs],
            repeats=[str(folder) for run in runs for folder in run.repeats],
            summaries=summaries,
            compared=compared,
            comparison=comparison,
            waiting=sum(summary.waiting for summary in summaries),
            has_test=any(summary.test for summary in summaries),
            finals=[(run.label, final, _opening(run, i)) for run in runs for i, final in enumerate(run.finals)],
            parts=list(dict.fromkeys(part for summary in summaries for part in summary.parts)),
            figures={
                "scores": _markup(figures.scores_figure(runs)),
                "anytime": _markup(compared and figures.anytime_figure(compared)),
                "profile": _markup(compared and figures.profile_figure(searches, metric)),
                "test": _markup(figures.test_figure(runs)),
                "structures": _markup(figures.structures_figure(runs)),
                "learning": _markup(figures.learning_figure(_best_trials(runs))),
                "cost": _markup(figures.cost_figure(summaries)),
            },
            programs=_best_programs(runs),
            plotly=Markup(get_plotlyjs()),
        )
    )
    return _write(Path(out), page)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("derl_gym.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"quantity": quantity, "duration": duration}
    return environment


def _markup(figure: Any) -> Markup | None:
    if figure is None:
        return None
    config = {"responsive": True, "displayModeBar": False}  # the bar has a button that sends the figure away
    return Markup(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def _opening(run: Run, place: int) -> int:
    """How often the test split has been opened for these programs and this seed, this time included."""
    final = run.finals[place]
    looks = [(row["programs"], row["seed"]) for row in run.finals[: place + 1]]
    return looks.count((final["programs"], final["seed"]))


def _headings(runs: Sequence[Run]) -> list[str]:
    """One line per environment: its id, task, version and variant."""
    lines = [
        f"{run.config.get('environment') or 'an environment without an id'}: "
        f"task {run.config.get('task_name', '?')} version {run.config.get('task_version', '?')}, "
        f"variant {run.config.get('variant', '?')}, {run.config.get('outer_steps', '?')} outer steps of "
        f"{run.config.get('group_size', '?')} programs"
        for run in runs
    ]
    return list(dict.fromkeys(lines))


def _settings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Every setting, and all its values where runs differ."""
    values: dict[str, list[str]] = {}
    for run in runs:
        flat = {key: value for key, value in run.config.items() if key != "inner"}
        flat |= {f"inner.{key}": value for key, value in (run.config.get("inner") or {}).items()}
        for key, value in flat.items():
            if str(value) not in values.setdefault(key, []):
                values[key].append(str(value))
    return [(key, " | ".join(found)) for key, found in values.items()]


def _best_trials(runs: Sequence[Run]) -> list[tuple[str, Row]]:
    """The best inner runs, at most one of each class of programs."""
    scored = [(run, row) for run in runs for row in run.trials.values() if row["status"] == "scored"]
    scored.sort(key=lambda pair: -pair[1]["score"])
    classes: dict[str, tuple[Run, Row]] = {}
    for run, row in scored:
        classes.setdefault(_class(run, row), (run, row))
        if len(classes) == TOP_CURVES:
            break
    return [(run.label, run.with_curve(row)) for run, row in classes.values()]


def _best_programs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The best classes of programs over all agents: their scores, formula and audit."""
    classes: dict[str, list[tuple[Run, Row]]] = {}
    for run in runs:
        for row in run.trials.values():
            if row["status"] == "scored":
                classes.setdefault(_class(run, row), []).append((run, row))
    ranked = sorted(classes.values(), key=lambda rows: -statistics.fmean(row["score"] for _, row in rows))
    return [_program_card(rows) for rows in ranked[:TOP_PROGRAMS]]


def _class(run: Run, row: Row) -> str:
    """What runs must share for their scores to be averaged: the class of programs, and how it was trained."""
    training = [run.config.get(name) for name in ("environment", "task_version", "variant", "inner", "data")]
    return json.dumps([*training, row["key"] or row["program"]], sort_keys=True)


def _program_card(rows: Sequence[tuple[Run, Row]]) -> dict[str, Any]:
    run, first = rows[0]
    # Searches with the same seed share inner runs, and one that is counted twice would look like certainty.
    scores = list({row["identity"]: row["score"] for _, row in rows}.values())
    parsed, analysis = run.parse(first["program"]), run.analyse(first["program"])
    spellings = dict.fromkeys(row["program"] for _, row in rows)
    return {
        "program": first["program"],
        "others": [text for text in spellings if text != first["program"]],
        "score": estimate(scores) or Estimate(math.nan, None, 0),
        "agents": list(dict.fromkeys(found.label for found, _ in rows)),
        "math": None if parsed is None else Markup(mathml(parsed)),
        "latex": None if parsed is None else parsed.latex(),
        "audit": analysis,
        "undefined": 0
        if analysis is None
        else analysis.undefined
        if isinstance(analysis.undefined, int)
        else len(analysis.undefined),
    }


def _write(out: Path, page: str) -> Path:
    """Write the page so that nobody ever reads half of it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=out.parent, suffix=".html", delete=False) as file:
        file.write(page)
    os.chmod(file.name, 0o644 & out.parent.stat().st_mode)  # as open as its folder: a run directory's is private
    os.replace(file.name, out)
    return out
