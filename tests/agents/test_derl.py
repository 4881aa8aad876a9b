"""The DERL update against computations by hand, and that it learns."""

import copy
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from derl_agents import search  # noqa: E402
from derl_agents.derl import DERLProposer, group_advantages, risk_seeking_advantages  # noqa: E402
from derl_agents.random_search import RandomSearch  # noqa: E402
from derl_gym.programs import RewardProgram  # noqa: E402

QUICK = {"cold_start_programs": 200, "cold_start_steps": 20}
SCORES = np.array([0.0, 0.5, 0.9, 0.2])


@pytest.fixture(params=["small", "named", "charset"])
def agent(request, make_envs):
    """An agent with some asked programs, n = 4."""
    options = {"small": QUICK, "charset": {**QUICK, "mask": "charset"}, "named": {"temperature": 0.8}}[request.param]
    if request.param == "named":
        options["model"] = str(request.getfixturevalue("tiny_lm"))
    agent = DERLProposer(make_envs(num_envs=4, max_length=16), seed=1, **options)
    agent.ask({}, {})
    return agent


def independent_log_probs(agent, samples):
    """Per program a list of masked distributions, float64: one uncached forward pass per token, numpy from there."""
    lm, result = agent.lm, []
    for sample in samples:
        ids, state, rows = lm.prompt.tolist(), lm.vocabulary.start(), []
        for column in sample:
            with torch.no_grad():
                logits = lm.model(torch.tensor([ids]), use_cache=False).logits[0, -1].double().numpy()
            logits = logits[lm.vocabulary.ids] / agent.options.temperature
            logits[~lm.vocabulary.legal(state)] = -np.inf
            logits -= logits.max()
            rows.append(logits - np.log(np.exp(logits).sum()))
            ids.append(lm.vocabulary.ids[column])
            if column:
                state = lm.vocabulary.advance(state, column)
        result.append(rows)
    return result


def test_advantages_are_over_the_whole_group():
    # Mean 0.5, deviations -0.5 0 0.5 0, sample variance 0.5 / 3.
    expected = np.array([-0.5, 0.0, 0.5, 0.0]) / np.sqrt(0.5 / 3)
    assert group_advantages(np.array([0.0, 0.5, 1.0, 0.5])) == pytest.approx(expected, rel=1e-5)
    assert group_advantages(np.full(8, 0.3)) is None
    assert group_advantages(np.zeros(8)) is None
    assert group_advantages(np.array([0.7])) is None


def test_risk_seeking_advantages_are_above_the_quantile():
    # Sorted 0, 0.5, 0.5, 1: the quantile at 0.75 lies a quarter of the way from 0.5 to 1.
    expected = np.array([0.0, 0.0, (1 - 0.625) / 0.25, 0.0]) / np.sqrt(0.5 / 3)
    assert risk_seeking_advantages(np.array([0.0, 0.5, 1.0, 0.5]), 0.25) == pytest.approx(expected, rel=1e-5)
    expected = np.array([0.0, 0.0, (1 - 0.5) / 0.5, 0.0]) / np.sqrt(0.5 / 3)
    assert risk_seeking_advantages(np.array([0.0, 0.5, 1.0, 0.5]), 0.5) == pytest.approx(expected, rel=1e-5)
    assert risk_seeking_advantages(np.array([0.0, 1.0, 1.0, 1.0]), 0.25) is None
    assert risk_seeking_advantages(np.array([0.7]), 0.25) is None


def test_risk_seeking_moves_the_proposer_by_its_best_programs_alone(make_envs):
    options = {**QUICK, "kl": 0.0, "epochs": 1}
    agent, by_hand = (DERLProposer(make_envs(num_envs=4), seed=1, **options, risk_seeking=r) for r in (0.25, None))
    for one in (agent, by_hand):
        one.ask({}, {})
    agent.learn(np.empty(0), SCORES, {})
    by_hand.update([by_hand.samples[2]], risk_seeking_advantages(SCORES, 0.25)[2:3] / 4)  # the loss is a mean over n
    for mine, other in zip(agent.lm.model.parameters(), by_hand.lm.model.parameters(), strict=True):
        assert torch.allclose(mine.grad, other.grad, atol=1e-5)
    agent.learn(np.empty(0), np.array([0.0, 1.0, 1.0, 1.0]), {})
    assert [entry["updated"] for entry in agent.log] == [True, False]
    assert agent.log[1]["reason"] == "no score of the group is above its quantile"
    with pytest.raises(ValueError, match="risk_seeking must be a share below 1, not 1"):
        DERLProposer(make_envs(), risk_seeking=1)


def test_checkpoints_from_before_risk_seeking_are_read(make_envs, tmp_path):
    agent = DERLProposer(make_envs(num_envs=4), **QUICK)
    agent.save(tmp_path)
    state = json.loads((tmp_path / "agent.json").read_text())
    del state["options"]["risk_seeking"]
    (tmp_path / "agent.json").write_text(json.dumps(state))
    DERLProposer(make_envs(num_envs=4), **QUICK).load(tmp_path)
    with pytest.raises(ValueError, match="risk_seeking: saved None, now 0.25"):
        DERLProposer(make_envs(num_envs=4), **QUICK, risk_seeking=0.25).load(tmp_path)


def test_log_probs_are_those_of_the_masked_distribution(agent):
    batch = agent.lm.batch(agent.samples)
    log_probs = agent.lm.log_probs(batch).detach().numpy()
    for row, rows in enumerate(independent_log_probs(agent, agent.samples)):
        assert len(rows) == len(agent.samples[row]) == batch.valid[row].sum()
        for place, expected in enumerate(rows):
            assert np.exp(log_probs[row, place]) == pytest.approx(np.exp(expected), abs=2e-6)
            assert np.exp(log_probs[row, place]).sum() == pytest.approx(1.0, abs=1e-5)


def test_samples_follow_that_distribution(make_envs, tiny_lm):
    agent = DERLProposer(make_envs(num_envs=2, max_length=2), model=str(tiny_lm), temperature=0.7)
    firsts = [sample[0] for sample in agent.lm.sample(4000)]
    (rows,) = independent_log_probs(agent, [[firsts[0]]])
    expected = np.exp(rows[0])
    observed = np.bincount(firsts, minlength=len(expected)) / 4000
    assert (observed[expected == 0] == 0).all()
    assert observed == pytest.approx(expected, abs=0.03)


def test_end_is_sampled_and_trained_on(agent):
    batch = agent.lm.batch(agent.samples)
    for row, sample in enumerate(agent.samples):
        assert sample[-1] == 0 and 0 not in sample[:-1]
        assert batch.valid[row, len(sample) - 1] == 1 and batch.valid[row, len(sample) :].sum() == 0
    # Where the program could have gone on, the gradient of its END reaches the weights.
    samples = agent.lm.sample(30)
    batch = agent.lm.batch(samples)
    row = int(np.argmax([batch.legal[i, len(s) - 1].sum() for i, s in enumerate(samples)]))
    end = agent.lm.log_probs(batch)[row, len(samples[row]) - 1, 0]
    assert end < 0
    end.backward()
    assert max(float(p.grad.abs().max()) for p in agent.lm.model.parameters() if p.grad is not None) > 0


def gradients(agent, loss):
    agent.lm.model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in agent.lm.model.parameters()]


def test_first_gradient_is_reinforce_with_the_group_advantage(agent):
    batch = agent.lm.batch(agent.samples)
    advantages = torch.tensor(group_advantages(SCORES), dtype=torch.float32)
    log_probs = agent.lm.log_probs(batch)
    loss, stats = agent.loss(batch, log_probs, log_probs.detach(), None, advantages)
    mine = gradients(agent, loss)
    assert stats["clipped"] == 0

    # sum_i A_i log pi(program_i) / n, each program alone, without padding, batch or cache.
    objective = torch.zeros(())
    for advantage, sample in zip(advantages, agent.samples, strict=True):
        ids = torch.tensor([[*agent.lm.prompt.tolist(), *(agent.lm.vocabulary.ids[c] for c in sample)]])
        logits = agent.lm.model(ids, use_cache=False).logits[0, len(agent.lm.prompt) - 1 : -1]
        state = agent.lm.vocabulary.start()
        for row, column in zip(logits, sample, strict=True):
            legal = np.array(agent.lm.vocabulary.ids)[agent.lm.vocabulary.legal(state)]
            scaled = row / agent.options.temperature
            log_prob = scaled[agent.lm.vocabulary.ids[column]] - scaled[legal.tolist()].logsumexp(0)
            objective = objective + advantage * log_prob / len(agent.samples)
            if column:
                state = agent.lm.vocabulary.advance(state, column)
    for got, expected in zip(mine, gradients(agent, -objective), strict=True):
        assert torch.allclose(got, expected, atol=2e-6, rtol=1e-3)


def test_clipping_stops_only_what_has_gone_far_enough(agent):
    batch = agent.lm.batch(agent.samples)
    log_probs = agent.lm.log_probs(batch)
    zero = torch.zeros(4)

    def gradient(shift, advantage):
        old = log_probs.detach() - shift  # every ratio is exp(shift)
        loss, stats = agent.loss(batch, agent.lm.log_probs(batch), old, None, zero + advantage)
        return max(float(g.abs().max()) for g in gradients(agent, loss)), stats["clipped"]

    assert gradient(0.5, 1.0) == (0.0, 1.0)  # already more probable by more than the clip
    assert gradient(-0.5, -1.0) == (0.0, 1.0)
    assert gradient(0.5, -1.0)[0] > 0  # but the way back is open
    assert gradient(-0.5, 1.0)[0] > 0
    assert gradient(0.1, 1.0)[0] > 0 and gradient(0.1, 1.0)[1] == 0


def test_kl_is_to_the_initial_proposer_and_exact(make_envs):
    agent = DERLProposer(envs := make_envs(num_envs=4, max_length=16), seed=1, lr=1e-2, **QUICK)
    envs.reset()
    actions = agent.ask({}, {})
    initial = [p.detach().clone() for p in agent.lm.model.parameters()]
    for _ in range(3):
        agent.tell(actions, SCORES, {})
        actions = agent.ask({}, {})
    assert all(torch.equal(a, b) for a, b in zip(initial, agent.reference.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(initial, agent.lm.model.parameters(), strict=True))

    batch = agent.lm.batch(agent.samples)
    log_probs, reference = agent.lm.log_probs(batch), agent.reference_log_probs(batch)
    loss, stats = agent.loss(batch, log_probs, log_probs.detach(), reference, torch.zeros(4))
    now = independent_log_probs(agent, agent.samples)
    agent.lm.model, learned = agent.reference, agent.lm.model
    then = independent_log_probs(agent, agent.samples)
    agent.lm.model = learned
    kl = 0.0
    for p, q in zip(np.concatenate(now), np.concatenate(then), strict=True):
        legal = p > -np.inf
        kl += np.sum(np.exp(p[legal]) * (p[legal] - q[legal])) / 4
    assert kl > 0.01
    assert stats["kl"] == pytest.approx(kl, rel=1e-4)
    assert loss.item() == pytest.approx(agent.options.kl * kl, rel=1e-4)
    assert agent.log[-1]["kl"] > 0


def test_an_equal_group_changes_nothing(agent):
    before = copy.deepcopy(agent.lm.model.state_dict())
    agent.tell(agent.pending, np.zeros(4), {})
    agent.ask({}, {})
    agent.tell(agent.pending, np.full(4, 0.3), {})
    assert all(torch.equal(before[name], value) for name, value in agent.lm.model.state_dict().items())
    assert [entry["updated"] for entry in agent.log] == [False, False]
    assert agent.log[0]["reason"] == "all scores of the group are equal"


def test_the_prompt_is_encoded_once(make_envs, tiny_lm):
    agent = DERLProposer(make_envs(num_envs=8), model=str(tiny_lm), epochs=2, lr=1e-3)
    length, shapes, forward = len(agent.lm.prompt), [], agent.lm.model.forward
    assert length > 30

    def counted(input_ids=None, **arguments):
        shapes.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, **arguments)

    agent.lm.model.forward = counted
    actions = agent.ask({}, {})
    assert [shape for shape in shapes if shape[1] >= length] == [(1, length)]
    assert {shape for shape in shapes if shape[1] < length} == {(8, 1)}
    agent.reference.forward = counted
    shapes.clear()
    agent.tell(actions, np.linspace(0, 1, 8), {})
    assert [shape for shape in shapes if shape[1] >= length] == [(1, length)] * 3  # reference and two epochs


def test_the_prompt_is_the_instruction_in_the_chat_template(make_envs, tiny_lm):
    transformers = pytest.importorskip("transformers")
    envs = make_envs(num_envs=2)
    agent = DERLProposer(envs, model=str(tiny_lm))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_lm)
    assert tokenizer.decode(agent.lm.prompt) == f"[user]{envs.instruction}[answer]"


def test_a_real_pretrained_model(make_envs, stories260k):
    envs = make_envs(num_envs=4, max_length=12)
    agent = DERLProposer(envs, model=str(stories260k), lr=1e-3, seed=0)
    observation, info = envs.reset(seed=0)
    for _ in range(2):
        actions = agent.ask(observation, info)
        for row in actions:
            RewardProgram.parse(envs.programs.decode(row), k=4, max_length=12)
        observation, scores, _, _, info = envs.step(actions)
        agent.tell(actions, scores, info)
    assert agent.log[-1]["updated"]


def test_a_long_instruction_is_cut_with_a_warning(make_envs, tiny_lm):
    envs = make_envs(num_envs=2)
    envs.instruction = "abc " * 600
    with pytest.warns(UserWarning, match=r"the instruction takes \d+ tokens .* reads 512"):
        agent = DERLProposer(envs, model=str(tiny_lm))
    assert len(agent.lm.prompt) + agent.lm.vocabulary.max_columns == 512
    agent.ask({}, {})


def test_models_that_cannot_be_loaded(make_envs, tmp_path, tiny_lm):
    envs = make_envs(num_envs=2)
    (tmp_path / "no-weights").mkdir()
    for file in tiny_lm.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / "no-weights" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "not-a-model").mkdir()
    for name in ("no-weights", "not-a-model"):
        with pytest.raises(OSError, match=f"cannot load the proposer .*{name}.*safetensors weights") as error:
            DERLProposer(envs, model=str(tmp_path / name))
        assert "\n" not in str(error.value)


def test_frozen_random_search_is_the_initial_proposer(make_envs):
    envs = make_envs(num_envs=4)
    learner = DERLProposer(envs, seed=3, **QUICK)
    frozen = RandomSearch(envs, seed=3, prior="proposer", **QUICK)
    assert np.array_equal(learner.ask({}, {}), frozen.ask({}, {}))


def test_defaults_fit_the_model(make_envs, tiny_lm):
    envs = make_envs(num_envs=2)
    named = DERLProposer(envs, model=str(tiny_lm)).options
    assert (named.lr, named.kl, named.clip, named.epochs, named.temperature) == (1e-6, 0.001, 0.2, 4, 0.7)
    small = DERLProposer(envs, kl=0.5).options
    assert (small.lr, small.kl, small.temperature, small.cold_start_steps) == (3e-3, 0.5, 1.0, 300)


@pytest.fixture(scope="session")
def cold_start(tmp_path_factory):
    """The small model's default cold start, done once: ``use(agent)`` gives an agent its weights."""
    from derl_agents.lm import ProposerLM
    from derl_agents.lm_options import LMOptions
    from derl_gym.programs import Grammar

    lm = ProposerLM(Grammar(k=4), "", LMOptions().resolved(), seed=0)
    lm.start()

    def use(agent):
        agent.lm.model.load_state_dict(lm.model.state_dict())
        agent.lm.started = True
        return agent

    use.lm = lm
    return use


@pytest.mark.slow
def test_cold_start_learns_the_grammar(cold_start):
    """Without any mask nine programs of ten parse, and they spread over the prior."""
    lm, grammar = cold_start.lm, cold_start.lm.grammar
    tokens = torch.full((400, 1), 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(grammar.max_length):
            logits = lm.model(tokens).logits[:, -1]
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1, generator=generator)], dim=1)
    texts = [grammar.decode(row) for row in tokens[:, 1:].numpy()]

    def parses(text):
        try:
            return bool(RewardProgram.parse(text, k=4))
        except ValueError:
            return False

    assert sum(map(parses, texts)) > 360
    assert len(set(texts)) > 250


@pytest.mark.slow
def test_it_learns_and_the_frozen_one_does_not(make_envs, cold_start):
    """The mean of the proposals over 12 outer steps of 8, three seeds each."""
    gains = {}
    for cls, options in ((DERLProposer, {}), (RandomSearch, {"prior": "proposer"})):
        means = []
        for seed in range(3):
            envs = make_envs(f"{cls.name}{seed}", num_envs=8, outer_steps=12)
            means.append(search(envs, cold_start(cls(envs, seed=seed, **options)), seed=seed).means)
        means = np.mean(means, axis=0)
        gains[cls.name] = means[-4:].mean() - means[:3].mean()
    assert gains["derl"] > 0.12
    assert abs(gains["random"]) < 0.06


def test_the_mask_is_the_environments_unless_it_is_named(make_envs):
    envs = make_envs(num_envs=2)
    envs.mask_kind = "charset"
    assert DERLProposer(envs).options.mask == "charset"
    assert DERLProposer(envs, mask="grammar").options.mask == "grammar"
