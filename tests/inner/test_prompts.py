"""Chat or plain, the same tokens in training as in evaluation, and prompts that are too long."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from made_policies import CHAT_TEMPLATE, FIRST_DIGIT, make_policy, make_tokenizer

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks import load_task

train = pytest.importorskip("derl_gym.inner.train")

from transformers import GenerationConfig, LlamaConfig  # noqa: E402

from derl_gym.inner import prompts  # noqa: E402

MESSAGES = [{"role": "user", "content": "1+2="}]
SMALL = InnerConfig(steps=1, batch_size=16, num_generations=8, max_completion_length=4, eval_batch_size=24)


def style(tokenizer, generation: dict, asked: str = "auto") -> str:
    return prompts.resolve_style(asked, tokenizer, prompts.stop_ids(GenerationConfig(**generation), tokenizer))


def test_a_base_model_with_a_template_is_not_chatted_with() -> None:
    """Qwen2.5's base models ship the template of the instruct models, whose turns end as theirs never do."""
    base = make_tokenizer(eos="<|endoftext|>")
    assert style(base, {"eos_token_id": 1}) == "plain"
    assert style(base, {"eos_token_id": 1}, "chat") == "chat", "unless it is insisted on"


def test_a_model_that_stops_at_the_end_of_a_turn_is() -> None:
    by_tokenizer, by_generation = make_tokenizer(eos="<|im_end|>"), make_tokenizer(eos="<|endoftext|>")
    assert style(by_tokenizer, {}) == "chat"
    assert style(by_generation, {"eos_token_id": [3, 1]}) == "chat", "Qwen2.5-Instruct declares both"
    assert style(by_tokenizer, {}, "plain") == "plain"


def test_no_template_no_chat() -> None:
    bare = make_tokenizer(template=None)
    assert style(bare, {}) == "plain"
    with pytest.raises(ValueError, match="prompt_style is 'chat', but the policy's tokenizer has no chat template"):
        style(bare, {}, "chat")


def test_a_template_may_strip_what_is_said_and_bring_a_system_message() -> None:
    stripping = "<|im_start|>system gym<|im_end|>" + CHAT_TEMPLATE.replace(
        "message['content']", "message['content'] | trim"
    )
    assert style(make_tokenizer(eos="<|im_end|>", template=stripping), {}) == "chat"
    assert style(make_tokenizer(eos="<|endoftext|>", template=stripping), {}) == "plain"


def test_the_prompt_of_an_example() -> None:
    both = {"prompt": "1+2=", "messages": [{"role": "user", "content": "add"}]}
    assert prompts.prompt_of(both, "chat") == both["messages"]
    assert prompts.prompt_of(both, "plain") == "1+2="
    assert prompts.prompt_of({"prompt": "1+2="}, "chat") == MESSAGES
    assert prompts.prompt_of({"prompt": MESSAGES}, "chat") == MESSAGES
    with pytest.raises(ValueError, match="prompts are chat messages, but the policy is prompted in plain text"):
        prompts.prompt_of({"prompt": MESSAGES}, "plain")


def test_token_ids_by_hand() -> None:
    tokenizer = make_tokenizer(bos=True)
    digit = FIRST_DIGIT
    assert prompts.token_ids(["1+2=", "1"], tokenizer) == [[4, digit + 1, 9, digit + 2, 10], [4, digit + 1]]
    # <|im_start|>user 1<|im_end|>\n<|im_start|>assistant: one <unk> per blank, no <bos>.
    unknown = digit + 10
    chat = [2, 5, unknown, digit + 1, 3, unknown, 2, 6, unknown]
    assert prompts.token_ids([[{"role": "user", "content": "1"}]], tokenizer) == [chat]
    assert prompts.token_ids([], tokenizer) == []


@pytest.mark.parametrize("settings", [{"eos": "<|im_end|>"}, {"bos": True}], ids=["chat", "plain"])
def test_training_and_evaluation_see_the_same_tokens(tmp_path: Path, monkeypatch, settings: dict) -> None:
    """What the trainer generates from and what the evaluation generates from, recorded where both call the model."""
    policy = make_policy(tmp_path / "start", **settings)
    seen: dict[str, set[tuple[int, ...]]] = {"train": set(), "evaluation": set()}
    rollouts = train.GRPOTrainer._generate_single_turn

    def recorded(self, prompt_ids, *args, **kwargs):
        seen["train"] |= {tuple(ids) for ids in prompt_ids}
        return rollouts(self, prompt_ids, *args, **kwargs)

    def watched(model, tokenizer, config):
        generate = transformers_generate(model, tokenizer, config)
        inner = model.generate

        def call(input_ids, attention_mask, **kwargs):
            rows = zip(input_ids.tolist(), attention_mask.tolist(), strict=True)
            seen["evaluation"] |= {tuple(i for i, m in zip(ids, mask, strict=True) if m) for ids, mask in rows}
            return inner(input_ids=input_ids, attention_mask=attention_mask, **kwargs)

        model.generate = call
        return generate

    transformers_generate = train.transformers_generate
    monkeypatch.setattr(train.GRPOTrainer, "_generate_single_turn", recorded)
    monkeypatch.setattr(train, "transformers_generate", watched)
    payload = {
        "task": "toy_tasks:Digits",
        "program": "g1",
        "policy": policy,
        "config": dataclasses.asdict(SMALL.override(steps=2)),
        "seed": 0,
        "train_split": "train",
        "eval_split": "train",
        "save_policy": False,
    }
    result = train.run(payload, tmp_path)
    expected = "chat" if "eos" in settings else "plain"
    assert result["prompt_style"] == expected and result["n_evaluated"] == 24
    assert len(seen["evaluation"]) == 24 and len(seen["train"]) == 4
    assert seen["train"] < seen["evaluation"]
    assert {ids[0] for ids in seen["evaluation"]} == {2 if expected == "chat" else 4}, "<|im_start|> or <bos>, once"


def test_what_is_too_long_is_left_out_or_counts_as_unsolved(tmp_path: Path) -> None:
    policy = make_policy(tmp_path / "start", template=None)
    payload = {
        "task": "length_tasks:Lengths",
        "program": "g1",
        "policy": policy,
        "seed": 0,
        "train_split": "train",
        "eval_split": "validation",
        "save_policy": False,
    }

    def run(**changes) -> dict:
        return train.run({**payload, "config": dataclasses.asdict(SMALL.override(**changes))}, tmp_path)

    # Prompts of 1..8 tokens, always solved: those of 6, 7 and 8 tokens are not even generated for.
    result = run(max_prompt_length=5)
    assert (result["score"], result["n_evaluated"], result["n_too_long"]) == (5 / 8, 8, 3)
    assert run()["n_too_long"] == 0
    # Without the setting it is the policy's context that counts: 64 tokens, 58 of them for the completion.
    assert run(eval_max_completion_length=58)["score"] == 6 / 8
    with pytest.raises(ValueError, match="one generation phase takes 2 prompts .* but 1 of 8 training prompts"):
        run(max_prompt_length=1)
    with pytest.raises(ValueError, match="completions of 64 tokens leave no room for a prompt in .* 64 tokens"):
        run(max_completion_length=64)
    task = load_task("length_tasks:Lengths", {"shortest": 3})
    assert min(len(example["prompt"]) for example in task.load("train")) == 3
    payload["task_options"] = {"shortest": 3}
    with pytest.raises(ValueError, match="all 8 training prompts are longer than 2 tokens; the shortest has 3"):
        run(max_prompt_length=2)


def test_the_longest_prompt() -> None:
    model = LlamaConfig(max_position_embeddings=100)
    assert prompts.longest_prompt(InnerConfig(), model, 16) == 84
    assert prompts.longest_prompt(InnerConfig(max_prompt_length=50), model, 16) == 50
    assert prompts.longest_prompt(InnerConfig(max_prompt_length=90), model, 16) == 84
