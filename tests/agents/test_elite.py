"""The parts that derl-elite adds to derl, each by itself."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from derl_agents import search  # noqa: E402
from derl_agents.derl import DERLProposer  # noqa: E402
from derl_agents.elite import EliteDERL  # noqa: E402
from derl_gym.programs import RewardProgram  # noqa: E402

QUICK = {"cold_start_programs": 500, "cold_start_steps": 40}
OFF = {"unique": False, "warm_up": 0, "mutants": 0, "imitation": 0.0}


def classes(envs, programs):
    return [envs.equivalence_key(program) for program in programs]


def test_with_every_part_off_it_is_derl(make_envs):
    plain = search(envs := make_envs("a", num_envs=4, outer_steps=4), DERLProposer(envs, seed=2, **QUICK), seed=0)
    elite = search(envs := make_envs("b", num_envs=4, outer_steps=4), EliteDERL(envs, seed=2, **QUICK, **OFF), seed=0)
    assert elite.programs == plain.programs


def test_no_class_twice(make_envs):
    envs = make_envs(num_envs=8, outer_steps=6)
    result = search(envs, EliteDERL(envs, seed=0, warm_up=2, mutants=3, resamples=30, **QUICK), seed=0)
    keys = classes(envs, sum(result.programs, []))
    assert len(set(keys)) == len(keys) == 48


def test_repeats_when_there_is_nothing_new(make_envs):
    """A program length of one allows four classes; the agent does not search for a fifth for ever."""
    envs = make_envs(num_envs=8, outer_steps=3, max_length=1)
    result = search(envs, EliteDERL(envs, seed=0, **QUICK | {"warm_up": 1}), seed=0)
    assert len(set(classes(envs, sum(result.programs, [])))) == 4


def test_warm_up_does_not_learn(make_envs):
    envs = make_envs(num_envs=8, outer_steps=4)
    agent = EliteDERL(envs, seed=0, warm_up=2, **QUICK)
    search(envs, agent, seed=0)
    assert [entry["updated"] for entry in agent.log] == [False, False, True, True]
    assert agent.log[0]["reason"] == "warm-up"


def test_archive_ranks_classes_by_mean_score(make_envs):
    envs = make_envs(num_envs=4)
    agent = EliteDERL(envs, elites=2, **QUICK, **OFF)
    agent.start()
    texts = ["g1+g2", "2*g1+2*g2", "g3", "g4-g2"]  # the first two are one class
    agent.samples = [agent.lm.vocabulary.columns(text) for text in texts]
    agent.remember(np.array([0.2, 0.6, 0.5, 0.1]))
    assert [(entry.text, entry.mean) for entry in agent.top(3)] == [("g3", 0.5), ("g1+g2", 0.4), ("g4-g2", 0.1)]


def test_nothing_is_imitated_while_all_scores_are_equal(make_envs):
    envs = make_envs(num_envs=4, score=lambda text: 0.0)
    agent = EliteDERL(envs, seed=0, **QUICK)
    search(envs, agent, seed=0)
    assert not any(entry["updated"] for entry in agent.log) and not agent.elites()


def test_imitation_raises_the_elites_and_weighs_them_by_score(make_envs):
    envs = make_envs(num_envs=4)
    options = dataclasses.replace(EliteDERL.Options(**QUICK, **OFF), elites=2, imitation=1.0, kl=0.0)
    agent = EliteDERL(envs, options, seed=0)
    agent.start()
    agent.samples = [agent.lm.vocabulary.columns(text) for text in ("g1+g2", "g3*g3+g3", "g4", "g2")]
    agent.remember(np.array([0.6, 0.55, 0.0, 0.0]))
    agent._elite_batch = batch, weights = agent.elite_batch()
    assert weights.tolist() == pytest.approx([np.exp(1) / (1 + np.exp(1)), 1 / (1 + np.exp(1))], rel=1e-5)

    def per_token():
        with torch.no_grad():
            taken = agent.lm.log_probs(batch).gather(2, batch.columns[..., None])[..., 0]
        return ((taken * batch.valid).sum(1) / batch.valid.sum(1)).numpy()

    before = per_token()
    assert agent.extra_loss().item() == pytest.approx(-(before @ weights.numpy()), rel=1e-5)
    agent.sampled[:] = True
    agent.learn(None, np.array([0.6, 0.55, 0.0, 0.0]), {})
    assert (per_token() > before).all()


def test_mutants_are_legal_new_and_near_an_elite(make_envs):
    envs = make_envs(num_envs=4)
    agent = EliteDERL(envs, seed=0, **QUICK)
    agent.start()
    parent = "2*g1+g2-0.5*g3"
    agent.samples = [agent.lm.vocabulary.columns(text) for text in (parent, "g4")]
    agent.remember(np.array([0.5, 0.0]))
    taken = set(agent.seen)
    texts = [agent.lm.text(columns) for columns in agent.mutants(20, taken)]
    assert len(texts) == 20 and len(set(classes(envs, [parent, "g4", *texts]))) == 22
    assert taken == {*classes(envs, [parent, "g4", *texts])}
    original = envs.programs.encode(parent)[envs.programs.encode(parent) > 0].tolist()
    for text in texts:
        RewardProgram.parse(text, k=4, max_length=32)
        ids = envs.programs.encode(text)
        ids = ids[ids > 0].tolist()
        start = next(
            (i for i, (a, b) in enumerate(zip(ids, original, strict=False)) if a != b), min(len(ids), len(original))
        )
        rest = original[start:]
        kept = max(n for n in range(len(rest) + 1) if n == 0 or ids[start:][-n:] == rest[-n:])
        assert len(rest) - kept <= 4 and len(ids) - start - kept <= 4


def test_mutants_are_not_the_policy_gradients_samples(make_envs):
    envs = make_envs(num_envs=4, outer_steps=9)
    agent = EliteDERL(envs, seed=0, warm_up=0, mutants=2, **QUICK)
    observation, info = envs.reset(seed=0)
    for step in range(2):
        actions = agent.ask(observation, info)
        assert agent.sampled.tolist() == ([True] * 4 if step == 0 else [True, True, False, False])
        observation, scores, _, _, info = envs.step(actions)
        agent.tell(actions, scores, info)


def test_the_last_step_scores_the_best_again(make_envs):
    envs = make_envs(num_envs=4, outer_steps=4)
    agent = EliteDERL(envs, seed=0, rescore=2, warm_up=1, **QUICK)
    result = search(envs, agent, seed=0)
    earlier = dict(pair for step in range(3) for pair in zip(result.programs[step], result.scores[step], strict=True))
    first, second = sorted(earlier, key=lambda text: -earlier[text])[:2]
    assert result.programs[-1] == [first, second, first, second]
    assert [len(entry.scores) for entry in agent.top(2)] == [3, 3]


def test_resumes_with_its_archive(make_envs, tmp_path):
    options = {**QUICK, "warm_up": 1, "mutants": 1}
    whole = search(envs := make_envs("a", num_envs=4, outer_steps=5), EliteDERL(envs, seed=1, **options), seed=0)

    class Dies(EliteDERL):
        def learn(self, actions, scores, info):
            if self.steps == 3:
                raise KeyboardInterrupt
            super().learn(actions, scores, info)

    with pytest.raises(KeyboardInterrupt):
        search(envs := make_envs("b", num_envs=4, outer_steps=5), Dies(envs, seed=1, **options), seed=0)
    resumed = search(envs := make_envs("b", num_envs=4, outer_steps=5), EliteDERL(envs, seed=1, **options), seed=0)
    assert resumed.programs == whole.programs


def test_a_named_model(make_envs, tiny_lm):
    envs = make_envs(num_envs=4, outer_steps=3)
    result = search(envs, EliteDERL(envs, model=str(tiny_lm), lr=1e-3, warm_up=1, mutants=1), seed=0)
    assert len(result.programs) == 3
