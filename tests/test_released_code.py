"""What the authors' released code gets wrong, a test for each: advantages, invalid programs, the test split, the KL
reference, sampled ids, crashed runs, lost checkpoints, mixed-up scores, device leases, groups without a valid program.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import derl_gym  # noqa: F401
from derl_gym import protocol
from derl_gym.envs import InfrastructureFailure
from derl_gym.trials.ledger import Ledger

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from derl_agents import AGENTS, search  # noqa: E402

QUICK = {"cold_start_programs": 200, "cold_start_steps": 20}


def make_vec(run_dir: Path, num_envs: int = 4, **settings):
    given = {"task": "toy_tasks:Digits", "outer_steps": 2, "run_dir": str(run_dir)} | settings
    return contextlib.closing(gym.make_vec("DERL-Arithmetic-v0", num_envs=num_envs, **given))


def encode(envs, *texts: str) -> np.ndarray:
    return np.stack([envs.unwrapped.programs.encode(text) for text in texts])


def proposer(envs, **options) -> Any:
    return AGENTS["derl"](envs, seed=1, **QUICK | options)


def weights(agent) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in agent.lm.model.parameters()])


def log_likelihood(agent, samples) -> np.ndarray:
    """Of whole sampled programs, END included, under the mask: (n,)."""
    batch = agent.lm.batch(samples)
    with torch.no_grad():
        taken = agent.lm.log_probs(batch).gather(2, batch.columns[..., None])[..., 0]
    return (taken * batch.valid).sum(1).numpy()


def test_advantages_are_normalised_over_the_whole_group_and_not_per_program(tmp_path: Path) -> None:
    """A program that is normalised by itself has no advantage: nothing would be learned."""
    scores = np.array([0.0, 0.0, 0.6, 0.1])
    after = []
    for i, told in enumerate((scores, 0.5 * scores + 0.2)):  # the same standing within the group
        with make_vec(tmp_path / str(i)) as envs:
            agent = proposer(envs, kl=0.0, epochs=1, lr=1e-4)
            actions = agent.ask({}, {})
            samples, before = list(agent.samples), weights(agent)
            likely = log_likelihood(agent, samples)
            agent.tell(actions, told, {})
            change = log_likelihood(agent, samples) - likely
            assert ((scores - scores.mean()) * change).sum() > 0, "what is above the group's mean gains"
            assert not torch.equal(before, weights(agent))
            after.append(weights(agent) - before)
    assert torch.allclose(after[0], after[1], atol=1e-5)


def test_an_invalid_program_stays_in_the_group_with_score_zero(tmp_path: Path) -> None:
    """Under the paper's mask some programs do not parse; the proposer learns from them as from the others."""
    with make_vec(tmp_path, 8, mask="charset", inner={"steps": 1}) as envs:
        agent = proposer(envs, kl=0.0, epochs=1, lr=1e-4, cold_start_steps=60)
        envs.reset(seed=0)
        actions = agent.ask({}, {})
        _, scores, *_, info = envs.step(actions)
        invalid = info["status"] == "invalid"
        assert 0 < invalid.sum() < 8 and (scores[invalid] == 0).all() and scores[~invalid].mean() > 0
        samples, likely = list(agent.samples), log_likelihood(agent, agent.samples)
        agent.tell(actions, scores, info)
        change = log_likelihood(agent, samples) - likely
    assert change[invalid].mean() < 0 < change[~invalid].mean()
    with Ledger(tmp_path, readonly=True) as ledger:
        assert [row["status"] == "invalid" for row in ledger.proposals()] == invalid.tolist()


@pytest.mark.parametrize("variant", ["base", "full"])
def test_validation_never_reads_the_test_split(tmp_path: Path, variant: str) -> None:
    """The task's test split raises: a search does not notice, the final evaluation does."""
    with make_vec(tmp_path, 2, variant=variant, outer_steps=1) as envs:
        envs.reset(seed=1)
        *_, info = envs.step(encode(envs, "g1", "g2"))
        assert info["final_info"]["status"].tolist() == ["scored", "scored"]
    with Ledger(tmp_path) as ledger:
        assert set(ledger.config["data"]) == {"train", "validation"}
        with pytest.raises(AssertionError, match="opened the test split"):
            protocol.train_final(ledger, protocol.select(ledger), [0])
        assert ledger.finals() == []


def test_the_kl_reference_is_the_initial_proposer(tmp_path: Path) -> None:
    """What the agent keeps as its reference after three updates, and after a resumption, are its first weights."""

    def saved(agent, name: str) -> Path:
        (tmp_path / name).mkdir()
        agent.save(tmp_path / name)
        return tmp_path / name

    def load(folder: Path, name: str) -> dict[str, torch.Tensor]:
        return safetensors.load_file(folder / f"{name}.safetensors")

    with make_vec(tmp_path / "run") as envs:
        agent = proposer(envs, lr=1e-2)
        actions = agent.ask({}, {})
        start = saved(agent, "start")
        for _ in range(3):
            agent.tell(actions, np.array([0.0, 0.5, 0.9, 0.2]), {})
            actions = agent.ask({}, {})
        folders = [saved(agent, "later")]
        resumed = proposer(envs, lr=1e-2)
        resumed.load(folders[0])
        folders.append(saved(resumed, "resumed"))
    initial = load(start, "lm")
    for folder in folders:
        reference, now = load(folder, "reference"), load(folder, "lm")
        assert all(torch.equal(initial[name], reference[name]) for name in initial)
        assert not all(torch.equal(initial[name], now[name]) for name in initial)


@pytest.mark.filterwarnings("ignore:the instruction takes .* tokens:UserWarning")
def test_sampled_ids_are_trained_on_as_sampled_and_under_the_mask(tmp_path: Path, tiny_lm: Path) -> None:
    """The model can write a program in several ways; tokenising its text again would train on ids nobody sampled."""
    from transformers import AutoTokenizer

    with make_vec(tmp_path) as envs:
        agent = proposer(envs, model=str(tiny_lm), lr=1e-2, kl=0.0, cold_start_steps=0)
        tokenizer, vocabulary = AutoTokenizer.from_pretrained(tiny_lm), agent.lm.vocabulary
        actions = agent.ask({}, {})
        samples = list(agent.samples)
        for sample in samples:
            state = vocabulary.start()
            for column in sample:
                assert vocabulary.legal(state)[column]
                state = state if column == 0 else vocabulary.advance(state, column)
            assert sample[-1] == 0, "END is sampled, and trained on"
        again = [tokenizer(agent.lm.text(sample)).input_ids for sample in samples]
        ids = [[vocabulary.ids[column] for column in sample[:-1]] for sample in samples]
        chosen = next(slot for slot in range(4) if ids[slot] != again[slot])
        before = log_likelihood(agent, samples)
        agent.tell(actions, np.eye(4)[chosen], {})
        change = log_likelihood(agent, samples) - before
    assert change[chosen] == change.max() > 0


def test_a_crashed_run_is_not_already_trained(tmp_path: Path) -> None:
    """It has no score and is trained when the search goes on, here and in another process's place."""
    mark = tmp_path / "folder" / "mark"  # without its folder, the run crashes before it trains
    settings = {"task": "toy_tasks:Dying", "task_options": {"once": str(mark)}}
    for _ in range(2):
        with make_vec(tmp_path / "run", 1, **settings) as envs:
            envs.reset(seed=1)
            with pytest.raises(InfrastructureFailure):
                envs.step(encode(envs, "g1"))
        with Ledger(tmp_path / "run", readonly=True) as ledger:
            assert [(row["status"], row["score"]) for row in ledger.trials()] == [("failed", None)]
    mark.parent.mkdir()
    mark.touch()
    with make_vec(tmp_path / "run", 1, **settings) as envs:
        envs.reset(seed=1)
        _, scores, *_, info = envs.step(encode(envs, "g1"))
    assert info["status"].tolist() == ["scored"] and scores[0] > 0
    with Ledger(tmp_path / "run", readonly=True) as ledger:
        assert [(row["status"], row["score"]) for row in ledger.proposals()] == [("scored", scores[0])]


def test_a_missing_checkpoint_of_derl_full_is_an_error_and_no_return_to_the_base_model(tmp_path: Path) -> None:
    with make_vec(tmp_path, 2, variant="full", outer_steps=3) as envs:
        envs.reset(seed=1)
        _, scores, *_, info = envs.step(encode(envs, "g1", "g2-g1"))
        best = info["trial"][scores.argmax()]
        shutil.rmtree(tmp_path / "trials" / best / "policy")
        with pytest.raises(FileNotFoundError, match=f"starts from the policy in .*{best}.* is missing"):
            envs.step(encode(envs, "g1", "g2"))
    with Ledger(tmp_path, readonly=True) as ledger:
        assert len(ledger.trials()) == 2, "nothing was trained from another policy instead"


@pytest.mark.slow
def test_parallel_evaluations_do_not_overwrite_each_others_scores(tmp_path: Path) -> None:
    programs = ["g1", "g2", "g1-g2", "g1*g2", "g1+g2", "2*g1-g2"]
    scores = {}
    for workers in (1, 4):
        run_dir = tmp_path / str(workers)
        with make_vec(run_dir, len(programs), workers=workers, outer_steps=1) as envs:
            envs.reset(seed=1)
            _, values, *_, info = envs.step(encode(envs, *programs))
        scores[workers] = values.tolist()
        for trial, score in zip(info["final_info"]["trial"], values, strict=True):
            assert json.loads((run_dir / "trials" / trial / "result.json").read_text())["score"] == score
    assert scores[1] == scores[4] and len(set(scores[1])) > 2, "each program has its own score, whoever runs beside it"


def test_device_leases_reach_the_process_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    seen = tmp_path / "seen"
    seen.mkdir()
    options = {"task": "toy_tasks:Leased", "task_options": {"folder": str(seen)}, "workers": 2}
    with make_vec(tmp_path / "run", 4, outer_steps=1, **options) as envs:
        envs.reset(seed=1)
        envs.step(encode(envs, "g1", "g2", "g1+g2", "g1-g2"))
    leases = [path.read_text() for path in sorted(seen.iterdir())]
    assert len(leases) == 4 and set(leases) == {"3", "5"}


def test_a_group_without_a_valid_program_is_survived_recorded_and_not_learned_from(tmp_path: Path) -> None:
    with make_vec(tmp_path, 2, mask="charset") as envs:
        agent = proposer(envs, cold_start_steps=0)
        learned = [weights(agent)]
        result = search(envs, agent, seed=0, on_step=lambda *_: learned.append(weights(agent)))
    assert result.scores[0].tolist() == [0.0, 0.0], "an untaught proposer writes no program at first"
    assert torch.equal(learned[0], learned[1])
    assert (agent.log[0]["updated"], agent.log[0]["reason"]) == (False, "all scores of the group are equal")
    with Ledger(tmp_path, readonly=True) as ledger:
        rows = [(row["step"], row["status"], row["score"]) for row in ledger.proposals()]
    assert rows[:2] == [(0, "invalid", 0.0)] * 2 and len(rows) == 4, "and the search goes on"
