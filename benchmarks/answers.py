r"""Is the answer check right, and what does it cost? Tricky pairs, labelled completions, MATH, hostile texts.

    python benchmarks/answers.py [--data FOLDER] [--out answers.json]

The data are those of ``$DERL_GYM_DATA``. A check's seconds are CPU time, the child's included, without the cache; those
of the first check and of hostile texts are wall-clock time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import os
import re
import statistics
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from derl_gym.tasks.answers import boxed, checker, equal, final_answer, unfinished
from derl_gym.tasks.answers.compare import compared

HOSTILE = {
    "42^{9999999}": (r"42^{9999999}", "42"),
    "2^{10^{10}}": (r"2^{10^{10}}", "2"),
    "2^{10^{10}} without braces": ("2^10^10", "2"),
    "(9^{9999})^{9999} times x": ("(9^{9999})^{9999}x", "x"),
    "(10^{9})!": ("(10^{9})!", "x"),
    "x^{9999} expanded": ("(x+1)^{9999}", "(x+1)^{9998}(x+2)"),
    "a sum of 10^{9} roots": (r"\sum_{k=1}^{1000000000} \sqrt{k}", "x"),
    "an integral without a formula": (r"\int_0^1 e^{\sin(x)}\ln(x+2)\,dx", r"\int_0^1 e^{\cos(x)}\ln(x+3)\,dx"),
    "100,000 nested braces": ("{" * 100_000 + "}" * 100_000, "1"),
    "1 MB": ("1+" * 500_000 + "1", "x"),
    "nothing but opened things": (r"\frac{\sqrt{(\left[" * 10, "1"),
    "null bytes": ("\0" * 300, "1"),
    "surrogates": ("\ud800\udfff", "1"),
    "unicode digits": ("\u0663", "3"),
}


def answer_in(text: str) -> str:
    r"""The answer in a text of the pairs, which follow Math-Verify's convention, wider than :func:`final_answer`.

    Boxes with nothing but "and", "or", a comma or a name between them are one answer. Without a box, a formula after
    words is the answer, and without a formula the last number of a sentence.
    """
    boxes = [match.start() for match in re.finditer(r"\\boxed", text)]
    if boxes:
        parts = [text[start:end] for start, end in zip(boxes, [*boxes[1:], len(text)], strict=True)]
        found = [boxed(parts.pop())]
        while parts and not re.search("[a-zA-Z]{2}", _between(parts[-1])):
            found.insert(0, boxed(parts.pop()))
        return ", ".join(part for part in found if part)
    formulas = re.findall(r"(?<!\\)\${1,2}(.+?)(?<!\\)\${1,2}", text)
    if formulas and not text.startswith("$"):
        return formulas[-1]
    if not formulas and len(re.findall(r"(?<!\\)\b[a-zA-Z]{2,}\b", text)) > 2:
        return final_answer(text, plain=True) or text
    return text


def _between(part: str) -> str:
    """What follows a box, less LaTeX's own words, "and", and "or"."""
    box = boxed(part) or ""
    behind = part[part.index(box) + len(box) :]
    return re.sub(r"\\text\s*\{ *(?:and|or) *\}|\\[a-zA-Z]+|\b(?:and|or)\b", "", behind)


def pairs(folder: Path) -> list[dict[str, Any]]:
    """The tricky pairs, each with ``contested``, ``equal`` (our verdict) and ``right``."""
    rows = [json.loads(line) for line in (folder / "answers" / "answer_pairs.jsonl").read_text().splitlines()]
    for row in rows:
        row["contested"] = "contested" in row["kind"] + row.get("note", "")
        row["equal"] = equal(answer_in(row["prediction"]), answer_in(row["gold"]))
        row["right"] = row["equal"] == row["expected_equal"]
    return rows


def completions(folder: Path) -> list[dict[str, Any]]:
    """The labelled completions of GSM8K: ``model``, ``solution``, ``truth``, ``label`` and ``equal`` (our verdict)."""
    found = []
    for line in (folder / "gsm8k" / "example_model_solutions.jsonl").read_text().splitlines():
        row = json.loads(line)
        truth = final_answer(row["ground_truth"], plain=True)
        for model, told in row.items():
            if isinstance(told, dict):
                answer = final_answer(told["solution"], plain=True)
                verdict = answer is not None and truth is not None and equal(answer, truth)
                found.append({"model": model, "label": told["is_correct"], "equal": verdict} | told | {"truth": truth})
    return found


def math_rows(folder: Path) -> list[dict[str, str]]:
    """The 12,500 problems of MATH."""
    rows = []
    for split in ("train", "test"):
        with gzip.open(folder / "math" / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows += [json.loads(line) for line in lines]
    return rows


def spellings(answer: str) -> list[str]:
    r"""A MATH answer written otherwise: ``\dfrac`` or a slash, dollars, other blanks, parentheses, no label."""
    found = [f"${answer}$", re.sub(r"\\frac(?![a-zA-Z])", r"\\dfrac", answer), re.sub(r"\\(left|right)", "", answer)]
    found.append(re.sub(r"(?<![0-9] )(?<![0-9])\\frac\{(-?[0-9]+)\}\{([0-9]+)\}", r"\1/\2", answer))
    if not re.search(r"\\text|\\begin|\\\{|\{,", answer):
        found.append(answer.replace("{", "{ ").replace("}", " }"))
    if re.fullmatch(r"[0-9a-z+^-]+", answer):
        found.append(f"\\left({answer}\\right)")
    if re.search(r"[0-9}] *\\(text|mbox) *\{[^}]*\}(\^[0-9])?\.?$", answer) and "m.}" not in answer:
        found.append(re.sub(r"\\(text|mbox) *\{[^}]*\}(\^[0-9])?\.?$", "", answer))
    return [text for text in dict.fromkeys(found) if text != answer]


def mutants(answer: str) -> list[str]:
    """A MATH answer with one digit, sign, bracket or variable changed, so that it is wrong."""
    found = []
    digits = [match.start() for match in re.finditer("[0-9]", answer)]
    for place in {digits[0], digits[-1]} if digits else ():
        found.append(f"{answer[:place]}{(int(answer[place]) + 1) % 10}{answer[place + 1 :]}")
    if match := re.search("[+-]", answer):
        found.append(f"{answer[: match.start()]}{'-' if match[0] == '+' else '+'}{answer[match.end() :]}")
    if "[" in answer or "]" in answer:
        found.append(answer.replace("[", "(", 1) if "[" in answer else answer.replace("]", ")", 1))
    if "x" in answer and "\\" not in answer:
        found.append(answer.replace("x", "z"))
    return found


def timings(folder: Path, rows: list[dict[str, str]]) -> dict[str, Any]:
    """CPU seconds per check of two kinds: what is decided here, and what the child process is asked about.

    The checks are the pairs, and every fourth MATH answer against its other spellings and its mutants.
    """
    tests = [(answer_in(row["prediction"]), answer_in(row["gold"])) for row in pairs(folder)]
    answers = list(dict.fromkeys(row["answer"] for row in rows if row["answer"]))
    tests += [(text, answer) for answer in answers[::4] for text in spellings(answer) + mutants(answer)]
    asked: dict[tuple[str, str], float] = {}
    here: dict[tuple[str, str], float] = {}
    verify = checker.verify
    in_child: list[float] = []

    def noted(*args: Any) -> tuple[bool, float]:
        verdict, seconds = verify(*args)
        in_child.append(seconds)
        return verdict, seconds

    checker.verify = noted
    try:
        for test in tests:
            in_child.clear()
            compared.cache_clear()
            start = time.process_time()
            equal(*test)
            (asked if in_child else here)[test] = time.process_time() - start + sum(in_child)
    finally:
        checker.verify = verify
    return {"decided here": _summary(here), "by math-verify": _summary(asked)}


def _summary(seconds: dict[tuple[str, str], float]) -> dict[str, Any]:
    values = list(seconds.values())
    return {
        "checks": len(values),
        "mean": statistics.mean(values),
        "median": statistics.median(values),
        "99th percentile": statistics.quantiles(values, n=100)[98],
        "worst": max(values),
        "the worst is": max(seconds, key=lambda test: seconds[test]),
    }


def hostile() -> dict[str, dict[str, Any]]:
    """Verdict and seconds of texts that are made to hang a checker."""
    found = {}
    for name, (answer, truth) in HOSTILE.items():
        start = time.perf_counter()
        found[name] = {"equal": equal(answer, truth), "seconds": time.perf_counter() - start}
    return found


def start_seconds() -> float:
    """Median seconds of the first check, in which the child process imports math-verify."""
    times = []
    for _ in range(3):
        checker.stop()
        start = time.perf_counter()
        checker.verify("x", "y")
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def correctness(folder: Path, rows: list[dict[str, str]]) -> dict[str, Any]:
    """Shares of right verdicts, and every wrong one."""
    told, labelled = pairs(folder), completions(folder)
    kinds: dict[str, list[bool]] = defaultdict(list)
    for row in told:
        kinds["contested" if row["contested"] else row["kind"]].append(row["right"])
    clear = [row["right"] for row in told if not row["contested"]]
    models = Counter(row["model"] for row in labelled)
    agree = Counter(row["model"] for row in labelled if row["label"] == row["equal"])
    full = [row for row in rows if row["answer"]]
    wrong = [
        {key: row[key] for key in ("id", "kind", "gold", "prediction", "expected_equal", "contested")}
        for row in told
        if not row["right"]
    ]
    answers = sorted({row["answer"] for row in full})
    spelled = [(text, answer) for answer in answers for text in spellings(answer)]
    changed = [(text, answer) for answer in answers for text in mutants(answer)]
    return {
        "pairs": {
            "uncontested": len(clear),
            "share right": statistics.mean(clear),
            "by kind": {kind: f"{sum(right)} of {len(right)}" for kind, right in sorted(kinds.items())},
            "wrong": wrong,
        },
        "labelled GSM8K completions": {
            "completions": len(labelled),
            "share in agreement": sum(agree.values()) / len(labelled),
            "by model": {model: f"{agree[model]} of {count}" for model, count in models.items()},
            "disagreements": [row for row in labelled if row["label"] != row["equal"]],
        },
        "MATH": {
            "rows": len(rows),
            "without an answer": len(rows) - len(full),
            "answer is what boxed(solution) gives": sum(
                boxed(row["solution"]) == row["answer"].strip() for row in full
            ),
            "different answers": len(answers),
            "other spellings": len(spelled),
            "other spellings refused": [pair for pair in spelled if not equal(*pair)],
            "mutants": len(changed),
            "mutants accepted": [pair for pair in changed if equal(*pair)],
        },
    }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=os.environ.get("DERL_GYM_DATA"), help="folder of the data")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("say where the data are: --data, or the variable DERL_GYM_DATA")
    logging.getLogger("derl_gym").setLevel(logging.ERROR)  # the hostile texts are given up on purpose
    rows = math_rows(arguments.data)
    found: dict[str, Any] = {
        "right": correctness(arguments.data, rows),
        "seconds of the first check": start_seconds(),
        "CPU seconds": timings(arguments.data, rows),
        "hostile": hostile(),
        "checks given up": unfinished(),
    }
    right, seconds = found["right"], found["CPU seconds"]
    worst = max(row["seconds"] for row in found["hostile"].values())
    found["claims"] = {
        "97 % of the uncontested pairs are right": right["pairs"]["share right"] >= 0.97,
        "every label of the GSM8K completions is met": right["labelled GSM8K completions"]["share in agreement"] == 1,
        "every MATH answer is what boxed(solution) gives": right["MATH"]["answer is what boxed(solution) gives"]
        == right["MATH"]["rows"] - right["MATH"]["without an answer"],
        f"a hostile text takes less than {checker.WALL_SECONDS:g} s": worst < checker.WALL_SECONDS,
    }
    table = [
        ("uncontested pairs right", f"{right['pairs']['share right']:.1%} of {right['pairs']['uncontested']}"),
        ("labels met", f"{right['labelled GSM8K completions']['share in agreement']:.2%}"),
        ("MATH answers found", str(right["MATH"]["answer is what boxed(solution) gives"])),
        (
            "other spellings refused",
            f"{len(right['MATH']['other spellings refused'])} of {right['MATH']['other spellings']}",
        ),
        ("mutants accepted", f"{len(right['MATH']['mutants accepted'])} of {right['MATH']['mutants']}"),
        ("seconds of the first check", f"{found['seconds of the first check']:.2f}"),
        *(
            (
                f"CPU ms per check {kind} (mean, median, worst)",
                " ".join(f"{row[k] * 1e3:.3g}" for k in ("mean", "median", "worst")),
            )
            for kind, row in seconds.items()
        ),
        ("seconds of the slowest hostile text", f"{worst:.2f}"),
        *((claim, "yes" if holds else "NO") for claim, holds in found["claims"].items()),
    ]
    for what, value in table:
        print(f"{what:70} {value}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
