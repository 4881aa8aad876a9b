"""A ledger's file with wrong bytes in it: a LedgerError, or rows; nothing else, and soon."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derl_gym.trials.cache import SharedCache
from derl_gym.trials.ledger import Ledger, LedgerError

PAGE = 4096


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder to write in, and a ledger with something in every table."""
    folder = tmp_path_factory.mktemp("fuzz")
    with Ledger(folder / "run", {"task": "x", "inner": {"steps": 2}}) as ledger:
        ledger.begin_episode(0, 5)
        for step in range(3):
            ledger.propose(0, step, np.arange(40).reshape(4, 10), ["g1", "g2", "g1+g2", "2*g1"])
            for slot in range(4):
                name, score = f"{step}-{slot}", 0.25 * slot
                ledger.start_trial(name, program="g1", key="k", seed=3, replicate=0, policy="p")
                result = {"status": "scored", "score": score, "curve": [{"reward": 0.1}]}
                ledger.finish_trial(name, status="scored", score=score, result=result, seconds=1.0, tokens=5, flops=1e9)
                ledger.settle(0, step, slot, identity=name, status="scored", score=score)
        ledger.record_final(["g1"], 0, test=0.5, result={"x": 1})
    return folder, (folder / "run" / "ledger.sqlite").read_bytes()


def damaged(content: bytes, kind: str, seed: int) -> bytes:
    draw, data = random.Random(seed), bytearray(content)
    pages = len(data) // PAGE
    if kind == "cut":
        return bytes(data[: draw.randrange(len(data))])
    if kind == "noise":
        start = PAGE * draw.randrange(pages)
        data[start : start + PAGE] = draw.randbytes(PAGE)
    elif kind == "swap":
        one, other = (slice(PAGE * page, PAGE * (page + 1)) for page in draw.choices(range(pages), k=2))
        data[one], data[other] = data[other], data[one]
    else:
        for _ in range(int(kind)):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


@settings(max_examples=400, deadline=5000)
@given(kind=st.sampled_from(["1", "3", "20", "200", "cut", "noise", "swap"]), seed=st.integers(0, 2**32))
def test_damage_is_said_or_does_not_matter(whole: tuple[Path, bytes], kind: str, seed: int) -> None:
    folder, content = whole
    shutil.rmtree(folder / "bad", ignore_errors=True)
    (folder / "bad").mkdir()
    (folder / "bad" / "ledger.sqlite").write_bytes(damaged(content, kind, seed))
    for readonly in (True, False):
        try:
            with Ledger(folder / "bad", readonly=readonly) as ledger:
                reads = (ledger.trials, ledger.proposals, ledger.episodes, ledger.finals, ledger.proposer_seconds)
                assert all(len(read()) <= 12 for read in reads)
                ledger.recorded_actions(0)
                ledger.last_checkpoint(0)
        except LedgerError as error:
            assert "ledger.sqlite" in str(error) or str(folder) in str(error)


def test_what_is_no_json_is_damage(whole: tuple[Path, bytes]) -> None:
    folder, content = whole
    (folder / "text").mkdir()
    broken = content.replace(b'{"status": "scored", "score": 0.25, "cu', b'["status": "scored", "score": 0.25, "cu', 1)
    assert broken != content
    (folder / "text" / "ledger.sqlite").write_bytes(broken)
    with Ledger(folder / "text") as ledger, pytest.raises(LedgerError, match="ledger.sqlite is damaged: "):
        ledger.trials()


def test_the_shared_cache_says_it_too(tmp_path: Path) -> None:
    cache = SharedCache(tmp_path / "trials.sqlite")
    cache.put("a", {"status": "scored", "score": 0.5})
    content = cache.path.read_bytes()
    assert content.count(b'{"status": "scored", "score": 0.5}') == 1
    cache.path.write_bytes(
        content.replace(b'{"status": "scored", "score": 0.5}', b'{"status": "scored", "score"; 0.5}')
    )
    with pytest.raises(LedgerError, match="trials.sqlite is damaged: "):
        cache.get("a")
