"""Problem sets from files of every kind, what is refused, and the split."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derl_gym.tasks import data
from derl_gym.tasks.data import Source, content_hash, load_rows, split_rows

ROWS = [{"question": f"What is {n} + 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"} for n in range(10)]
TOY = Source(
    "toy",
    hub=("somebody/toy", "default"),
    fields=("question", "answer"),
    rows={"train": 10},
    sha256={"train": content_hash(ROWS)},
)


def write(folder: Path, name: str, rows: list) -> Path:
    path = folder / "toy" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rows) if ".jsonl" not in name else "".join(json.dumps(row) + "\n" for row in rows)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", [f"train{ending}" for ending in data.ENDINGS])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, name, [{**row, "extra": 1} for row in ROWS])
    assert load_rows(TOY, "train", str(tmp_path)) == ROWS
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    assert load_rows(TOY, "train") == ROWS


def test_other_data_are_refused_unless_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", ROWS[:9])
    with pytest.raises(ValueError, match=r"has 9 rows, not the 10 of toy's train set.*check_data"):
        load_rows(TOY, "train", str(tmp_path))
    assert len(load_rows(TOY, "train", str(tmp_path), check=False)) == 9
    write(tmp_path, "train.jsonl", [*ROWS[:9], {"question": "What is 2 + 2?", "answer": "#### 5"}])
    with pytest.raises(ValueError, match=r"differs from the published toy train set: its rows hash to [0-9a-f]{12}"):
        load_rows(TOY, "train", str(tmp_path))


def test_the_order_of_rows_and_blanks_at_their_ends_do_not_matter(tmp_path: Path) -> None:
    shuffled = [{"question": f" {row['question']}\n", "answer": row["answer"]} for row in ROWS]
    random.Random(0).shuffle(shuffled)
    write(tmp_path, "train.jsonl", shuffled)
    assert split_rows(load_rows(TOY, "train", str(tmp_path)), "question") == split_rows(ROWS, "question")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("train.jsonl", b"{", "cannot be read"),
        ("train.jsonl", b"\xff\xfe", "cannot be read"),
        ("train.jsonl.gz", gzip.compress(b'{"question": "x"}\n' * 1000, mtime=0)[:50], "cannot be read"),
        ("train.jsonl.gz", b"not gzip", "cannot be read"),
        ("train.json", b"{}", "must hold a list of rows, not dict"),
        ("train.jsonl", b"[1]\n", "row 1: expected text in question, answer, found list"),
        ("train.jsonl", b'{"question": "x"}\n', "row 1: expected text in question, answer, found question"),
        ("train.jsonl", b'{"question": "x", "answer": 3}\n', "row 1: expected text in question, answer"),
        ("train.jsonl", b"", "holds no rows"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / "toy" / name
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_rows(TOY, "train", str(tmp_path))
    assert str(path) in str(caught.value)


def test_a_folder_without_the_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no toy data: expected one of .*/toy/train\{\.jsonl,"):
        load_rows(TOY, "train", str(tmp_path))


def test_where_nothing_can_be_reached_the_message_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.DATA_VARIABLE, raising=False)
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(data, "use_cache_without_network", lambda name: None)  # tests/test_hub.py tests it
    with pytest.raises(
        FileNotFoundError, match=r"neither a local folder .*toy/train.jsonl.* nor somebody/toy on the hub"
    ):
        load_rows(TOY, "train")


rows = st.lists(st.integers(0, 30).map(lambda n: {"question": f"q{n}", "answer": f"a{n}"}), min_size=2, max_size=40)


@given(rows, st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_split_keeps_every_row_and_no_problem_is_on_both_sides(found, seed, source) -> None:
    train, validation = split_rows(found, "question", seed)
    assert sorted(map(str, train + validation)) == sorted(map(str, found))
    assert not {row["question"] for row in train} & {row["question"] for row in validation}
    shuffled = list(found)
    source.shuffle(shuffled)
    assert split_rows(shuffled, "question", seed) == (train, validation)


def test_the_share_is_a_fifth_and_seeds_differ() -> None:
    many = [{"question": f"problem {n}", "answer": "1"} for n in range(7473)]
    halves = [split_rows(many, "question", seed) for seed in (0, 1)]
    assert [len(validation) for _, validation in halves] == [1495, 1495]
    shared = {row["question"] for row in halves[0][1]} & {row["question"] for row in halves[1][1]}
    assert 200 < len(shared) < 400  # a fifth of a fifth, 299, give or take


def test_the_split_of_a_row_is_fixed_for_all_machines() -> None:
    # sha256("0:What is 0 + 1?") and so on, ordered; worked out once with coreutils' sha256sum.
    assert [row["question"] for row in split_rows(ROWS, "question", 0)[1]] == ["What is 1 + 1?", "What is 3 + 1?"]


def test_the_files_are_those_that_were_published(data_dir: Path, tmp_path: Path) -> None:
    from derl_gym.tasks.mathematics import SOURCES

    for source in SOURCES.values():
        for split, count in source.rows.items():
            assert len(load_rows(source, split, str(data_dir))) == count
    shutil.copytree(data_dir / "gsm8k", tmp_path / "gsm8k")
    path = tmp_path / "gsm8k" / "train.jsonl"
    path.chmod(0o644)
    path.write_text(path.read_text().replace("Natalia sold clips to 48", "Natalia sold clips to 49", 1))
    with pytest.raises(ValueError, match="differs from the published gsm8k train set"):
        load_rows(SOURCES["gsm8k"], "train", str(tmp_path))
