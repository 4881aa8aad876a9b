"""pass@1 and its standard error by hand, several samples, and the evaluation of a kept policy."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_policies import make_policy, make_tokenizer

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks import Example, Split, load_task

evaluation = pytest.importorskip("derl_gym.inner.evaluate")

from derl_gym.inner.generate import transformers_generate  # noqa: E402

GREEDY = InnerConfig(steps=2, batch_size=16, max_completion_length=6, eval_temperature=0.0)


def test_the_standard_error_is_clustered_by_example() -> None:
    result = evaluation.pass_at_1(np.array([1.0, 0.5, 0.0, 1.0]), [None] * 4)
    # Deviations from 5/8: 3/8, -1/8, -5/8, 3/8; their squares sum to 44/64; variance 11/48; standard error of four.
    assert result == {"score": 0.625, "standard_error": pytest.approx(math.sqrt(11 / 48) / 2), "scores": {}}
    assert evaluation.pass_at_1(np.array([1.0]), [None])["standard_error"] is None


def test_a_headline_is_the_mean_of_its_benchmarks() -> None:
    solved, names = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 1.0]), ["a", "b", "a", "a", "a", "b"]
    every = evaluation.pass_at_1(solved, names)
    assert every["score"] == pytest.approx(4 / 6) and every["scores"] == {"a": 0.75, "b": 0.5}
    # Errors: a sqrt(3/4 / 3) / sqrt(4) = 1/4, b sqrt(1/2) / sqrt(2) = 1/2.
    both = evaluation.pass_at_1(solved, names, ("a", "b"))
    assert both["score"] == 0.625 and both["standard_error"] == pytest.approx(math.sqrt(1 / 16 + 1 / 4) / 2)
    one = evaluation.pass_at_1(solved, names, ("b",))
    assert one["score"] == 0.5 and one["standard_error"] == pytest.approx(0.5) and one["scores"] == both["scores"]
    assert evaluation.pass_at_1(solved, names, ("c",))["score"] == every["score"], "none of it was evaluated"
    few = evaluation.pass_at_1(np.array([1.0, 0.0, 1.0]), ["a", "a", "b"], ("a", "b"))
    assert few["score"] == 0.75 and few["standard_error"] is None, "one example of b tells no error"


class Parity:
    """Examples 0..5 of two benchmarks; a completion is right where it names its example's number."""

    headline = ("even", "odd")

    def load(self, split: Split) -> list[Example]:
        return [{"prompt": f"{i}=", "answer": i, "benchmark": ("even", "odd")[i % 2]} for i in range(6)]

    def correct(self, completion: str, example: Example) -> bool:
        return completion == str(example["answer"])

    def primitive_values(self, completions: list[str], examples: list[Example]) -> list[list[float]]:
        return [[float(self.correct(c, e)), float(len(c))] for c, e in zip(completions, examples, strict=True)]


def test_no_examples_give_no_score() -> None:
    with pytest.raises(ValueError, match="expected at least one example, got none"):
        evaluation.pass_at_1(np.zeros(0), [])

    class Nothing(Parity):
        def load(self, split: Split) -> list[Example]:
            return []

    with pytest.raises(ValueError, match="Nothing has no test examples to evaluate on"):
        evaluation.evaluate(
            Nothing(),  # type: ignore[arg-type]
            "test",
            lambda prompts: ([], 0),
            InnerConfig(),
            seed=0,
            tokenizer=make_tokenizer(),
            style="plain",
        )


def test_several_samples_of_an_example_are_averaged() -> None:
    asked: list[Any] = []

    def generate(prompts: list[Any]) -> tuple[list[str], int]:
        asked.extend(prompts)
        # Right: every sample of 0 and 3, the first of two of 1, none else.
        right = {0: "0", 1: "0", 2: "1", 6: "3", 7: "3"}
        return [right.get(i, "99") for i in range(len(prompts))], 10 * len(prompts)

    result = evaluation.evaluate(
        Parity(),  # type: ignore[arg-type]
        "validation",
        generate,
        InnerConfig(eval_samples=2),
        seed=0,
        tokenizer=make_tokenizer(),
        style="plain",
    )
    assert asked == [f"{i}=" for i in range(6) for _ in range(2)]
    assert result["scores"] == {"even": pytest.approx(1 / 3), "odd": pytest.approx(0.5)}
    assert result["score"] == pytest.approx(5 / 12)
    assert result["primitive_means"] == [pytest.approx(5 / 12), pytest.approx((5 * 1 + 7 * 2) / 12)]
    assert (result["n_evaluated"], result["n_too_long"], result["tokens"]) == (6, 0, 120)


def payload(task: str, policy: str, config: InnerConfig, **more: Any) -> dict[str, Any]:
    return {"task": task, "policy": policy, "config": dataclasses.asdict(config), "seed": 3, **more}


def test_a_kept_policy_scores_as_it_did_after_its_training(tmp_path: Path) -> None:
    train = pytest.importorskip("derl_gym.inner.train")
    start = load_task("toy_tasks:Digits").base_policy
    for config in (GREEDY, GREEDY.override(eval_temperature=1.0, eval_samples=3)):
        splits = {"train_split": "train", "eval_split": "validation", "save_policy": True}
        trained = train.run(payload("toy_tasks:Digits", start, config, program="g1", **splits), tmp_path)
        again = evaluation.run(payload("toy_tasks:Digits", trained["policy"], config, split="validation"), tmp_path)
        for name in ("score", "standard_error", "primitive_means", "n_evaluated", "prompt_style", "backend"):
            assert again[name] == trained[name], name
        assert trained["eval_flops"] == 2 * again["tokens"] * FLOPS_PARAMETERS


FLOPS_PARAMETERS = 2 * (4 * 64 * 64 + 3 * 64 * 256 + 2 * 64) + 64
"""Of the embedded policy, by hand: two layers of four projections, three matrices and two norms; one norm."""


def test_other_data_than_the_search_had_are_refused(tmp_path: Path) -> None:
    task = load_task("toy_tasks:Digits")
    right = {split: task.record(split)["sha256"] for split in ("train", "validation")}
    job = payload("toy_tasks:Digits", task.base_policy, GREEDY, split="validation")
    assert evaluation.run({**job, "data": right}, tmp_path)["n_evaluated"] == 24
    assert evaluation.run({**job, "data": {"train": "0" * 64}}, tmp_path)["n_evaluated"] == 24, "not read here"
    with pytest.raises(RuntimeError, match="the validation data differ .* here, 000000000000 there"):
        evaluation.run({**job, "data": {**right, "validation": "0" * 64}}, tmp_path)


def test_what_a_model_recommends_for_sampling_is_not_used(tmp_path: Path) -> None:
    """Greedy means greedy: Qwen2.5 declares a repetition penalty, which transformers would fill in."""
    from transformers import AutoModelForCausalLM

    prompts: list[Any] = ["1+2=", "3=", "9+9+9="]
    texts = []
    for name, generation in (("bare", {}), ("loaded", {"repetition_penalty": 1.9, "do_sample": True, "top_k": 1})):
        folder = make_policy(tmp_path / name, template=None, generation=generation)
        model = AutoModelForCausalLM.from_pretrained(folder)
        generate = transformers_generate(model, make_tokenizer(template=None), GREEDY)
        texts.append(generate(prompts))
        assert model.generation_config.repetition_penalty == generation.get("repetition_penalty"), "given back"
    assert texts[0] == texts[1]


def test_eval_examples_counts_for_each_benchmark() -> None:
    examples = Parity().load("test")
    assert [e["answer"] for e in evaluation.first_of_each(examples, 2)] == [0, 1, 2, 3]
    assert evaluation.first_of_each(examples, 9) == evaluation.first_of_each(examples, None) == examples
    of_one_kind = [{"prompt": str(i)} for i in range(4)]
    assert evaluation.first_of_each(of_one_kind, 3) == of_one_kind[:3]
    odd_last = sorted(examples, key=lambda e: e["benchmark"])
    assert [e["answer"] for e in evaluation.first_of_each(odd_last, 1)] == [0, 1], (
        "also where one comes after the other"
    )
