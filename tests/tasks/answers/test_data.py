r"""Shares of right verdicts on real data: tricky pairs, labelled completions, GSM8K, MATH."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from derl_gym.tasks.answers import boxed, equal, final_answer, mentions
from derl_gym.tasks.answers.arithmetic import number
from derl_gym.tasks.answers.notation import normal_form

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import answers as benchmark  # noqa: E402


def test_pairs(data_dir: Path):
    rows = benchmark.pairs(data_dir)
    clear = [row for row in rows if not row["contested"]]
    assert (len(rows), len(clear)) == (110, 99)
    assert sum(row["right"] for row in clear) >= 0.97 * len(clear)


def test_labelled_completions(data_dir: Path):
    rows = benchmark.completions(data_dir)
    assert len(rows) == 5276
    assert [row for row in rows if row["label"] != row["equal"]] == []


def test_gsm8k_golds_are_whole_numbers(data_dir: Path):
    golds = []
    for split in ("train", "test"):
        for line in (data_dir / "gsm8k" / f"{split}.jsonl").read_text().splitlines():
            golds.append(final_answer(json.loads(line)["answer"]))
    assert len(golds) == 7473 + 1319
    values = [number(normal_form(gold or "")) for gold in golds]
    assert all(value is not None and value.denominator == 1 for value in values)
    assert (sum("," in gold for gold in golds if gold), sum(value < 0 for value in values if value is not None)) == (
        93,
        5,
    )
    assert all(equal(gold, str(value)) for gold, value in zip(golds, values, strict=True) if gold)


def test_math_answers_are_found_and_equal_themselves(data_dir: Path):
    found = 0
    for split, size in (("train", 7500), ("test", 5000)):
        with gzip.open(data_dir / "math" / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        assert len(rows) == size
        for row in rows:
            answer = row["answer"].strip()
            assert boxed(row["solution"]) == final_answer(row["solution"]) == (answer or None)
            assert equal(row["answer"], row["answer"]) and equal(answer, row["answer"])
            assert mentions(row["solution"], row["answer"]) == (answer != "")
            found += answer != ""
    assert found == 12_498  # two solutions end with an empty box


@pytest.mark.slow
def test_math_answers_in_other_spellings_and_mutated(data_dir: Path):
    answers = sorted({row["answer"] for row in benchmark.math_rows(data_dir) if row["answer"]})[::10]
    assert [(s, a) for a in answers for s in benchmark.spellings(a) if not equal(s, a)] == []
    mutants = [(m, a) for a in answers for m in benchmark.mutants(a)]
    assert len(mutants) > 800
    assert sum(equal(m, a) for m, a in mutants) <= 0.002 * len(mutants)
