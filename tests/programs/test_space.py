import copy
import pickle

import gymnasium as gym
import numpy as np
from gymnasium.spaces import MultiDiscrete, flatdim, flatten, unflatten
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from derl_gym.programs import BatchedProgramSpace, Grammar, ProgramSpace, RewardProgram


def make(seed=None, **kwargs):
    return ProgramSpace(Grammar(k=4, max_length=32, **kwargs), seed=seed)


def test_is_a_multidiscrete_over_tokens():
    space = make()
    assert isinstance(space, MultiDiscrete)
    assert space.shape == (32,) and space.dtype == np.int64
    assert (space.nvec == 23).all()
    assert flatdim(space) == 23 * 32
    ids = space.encode("g1+g2")
    assert ids in space and space.decode(ids) == "g1+g2"
    assert (unflatten(space, flatten(space, ids)) == ids).all()
    assert space.mask(ids[:3]).sum() == space.grammar.mask(ids[:3]).sum()
    assert space.mask([9], "charset").all()
    assert np.full(32, 23) not in space and ids[:5] not in space
    assert repr(space) == "ProgramSpace(Grammar(k=4, max_length=32))"


def test_samples_are_programs_and_seeds_reproduce():
    space = make(seed=3)
    first = [space.sample() for _ in range(20)]
    assert all(ids in space and RewardProgram.parse(space.decode(ids), k=4).names for ids in first)
    space.seed(3)
    assert all((space.sample() == ids).all() for ids in first)
    assert len({space.decode(ids) for ids in first}) > 10
    masks = tuple(np.eye(23, dtype=np.int8)[i % 23] for i in range(32))
    assert space.sample(mask=masks).tolist() == [i % 23 for i in range(32)]


def test_equality_copies_and_pickles():
    space = make(seed=1)
    space.sample()
    for again in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert again == space and (again.sample() == copy.deepcopy(space).sample()).all()
    assert make() == make() and make() != ProgramSpace(Grammar(k=4, max_length=31))
    assert make(primitives=("g1", "g2")) != make(primitives=("g1", "g3"))
    plain = MultiDiscrete([23] * 32)
    assert make() != plain and plain != make()
    assert make().from_jsonable(make().to_jsonable([space.encode("g1")]))[0].tolist() == space.encode("g1").tolist()


def test_batches():
    space = make(seed=0)
    batch = batch_space(space, 5)
    assert isinstance(batch, BatchedProgramSpace) and isinstance(batch, MultiDiscrete)
    assert batch.shape == (5, 32) and batch == BatchedProgramSpace(Grammar(k=4, max_length=32), 5)
    assert batch != batch_space(space, 4) and batch != MultiDiscrete(np.full((5, 32), 23))
    programs = batch.sample()
    assert programs in batch and programs.dtype == np.int64
    texts = batch.decode(programs)
    assert all(RewardProgram.parse(text, k=4).names for text in texts)
    assert (batch.encode(texts) == programs).all()
    again = batch_space(make(seed=0), 5)
    assert (again.sample() == programs).all()
    # The batch draws from its own generator: sampling it leaves the single space where it was.
    assert (make(seed=0).sample() == space.sample()).all()
    for other in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert other == batch and (other.sample() == copy.deepcopy(batch).sample()).all()
    assert "n=5" in repr(batch)


def test_gymnasiums_vector_functions():
    space = make(seed=0)
    programs = [space.sample() for _ in range(3)]
    stacked = concatenate(space, programs, create_empty_array(space, n=3))
    assert isinstance(stacked, np.ndarray) and stacked.dtype == np.int64
    batch = batch_space(space, 3)
    assert stacked in batch
    assert all((one == two).all() for one, two in zip(iterate(batch, stacked), programs, strict=True))
    assert create_empty_array(batch, n=2).shape == (2, 3, 32)
    masks = tuple(tuple(np.eye(23, dtype=np.int8)[i % 23] for i in range(32)) for _ in range(3))
    assert batch.sample(mask=masks).tolist() == [[i % 23 for i in range(32)]] * 3


class Echo(gym.Env):
    """Gives every program back: the space must survive a vector environment as action and as observation."""

    def __init__(self):
        self.action_space = make()
        self.observation_space = gym.spaces.Dict(program=make())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"program": np.zeros(32, dtype=np.int64)}, {}

    def step(self, action):
        assert action in self.action_space
        return {"program": action.copy()}, 1.0, False, False, {}


def test_in_a_vector_environment():
    envs = SyncVectorEnv([Echo] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    assert isinstance(envs.action_space, BatchedProgramSpace)
    envs.reset(seed=0)
    actions = envs.action_space.sample()
    observation, *_ = envs.step(actions)
    assert (observation["program"] == actions).all()
    assert observation in envs.observation_space
