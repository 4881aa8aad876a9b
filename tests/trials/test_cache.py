"""The shared cache: first result stays, failures stay out, many processes at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from derl_gym.trials.cache import SharedCache
from derl_gym.trials.ledger import Ledger, LedgerError

SCORED = {"status": "scored", "score": 0.5, "curve": [{"reward": 0.25}]}


def test_put_and_get_across_objects(tmp_path: Path) -> None:
    path = tmp_path / "shared" / "cache.sqlite"
    cache = SharedCache(path)
    assert cache.get("t") is None
    cache.put("t", SCORED)
    cache.put("t", {**SCORED, "score": 0.75})
    assert cache.get("t") == SCORED, "the first one stays"
    assert SharedCache(path).get("t") == SCORED


def test_failures_are_not_kept(tmp_path: Path) -> None:
    cache = SharedCache(tmp_path / "cache.sqlite")
    for result in ({"status": "failed", "score": None}, {}):
        with pytest.raises(ValueError, match="only scored and invalid trials are kept"):
            cache.put("t", result)
    assert cache.get("t") is None


def test_many_processes_write_at_once(script, tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    writers = [
        script(
            f"""
            from derl_gym.trials.cache import SharedCache
            cache = SharedCache({str(path)!r})
            for i in range(40):
                cache.put(f"{{i}}", {{"status": "scored", "writer": {n}}})
                cache.put(f"{n}-{{i}}", {{"status": "scored", "writer": {n}}})
                assert cache.get(f"{{i}}") is not None
            """
        )
        for n in range(3)
    ]
    for writer in writers:
        writer.end()
    cache = SharedCache(path)
    assert all(cache.get(f"{n}-{i}") == {"status": "scored", "writer": n} for n in range(3) for i in range(40))
    assert all(cache.get(f"{i}")["writer"] in range(3) for i in range(40))


def test_ledger_is_no_cache_and_the_other_way_round(tmp_path: Path) -> None:
    Ledger(tmp_path, {}).close()
    with pytest.raises(LedgerError, match="is a derl_gym ledger, not a cache"):
        SharedCache(tmp_path / "ledger.sqlite")
    (tmp_path / "other").mkdir()
    SharedCache(tmp_path / "other" / "ledger.sqlite")
    with pytest.raises(LedgerError, match="is a derl_gym cache, not a ledger"):
        Ledger(tmp_path / "other", {})


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot use"):
        SharedCache(tmp_path / "file" / "cache.sqlite")
