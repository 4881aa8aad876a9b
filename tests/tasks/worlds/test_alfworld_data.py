"""Finding, unpacking, counting ALFWorld's games: no ALFWorld needed."""

from __future__ import annotations

import json
import multiprocessing
import tarfile
from pathlib import Path

import pytest

from derl_gym.tasks.worlds import alfworld_data
from derl_gym.tasks.worlds.alfworld import ALFWorld
from derl_gym.tasks.worlds.alfworld_data import find_root, game_type, list_games


def write_games(root: Path, part: str, names: list[str], solvable: bool = True) -> None:
    for name in names:
        folder = root / part / name / "trial_1"
        folder.mkdir(parents=True)
        text = json.dumps({"pddl_domain": "x" * 9000, "solvable": solvable, "walkthrough": ["look"]})
        (folder / "game.tw-pddl").write_text(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data anywhere, and a cache of its own."""
    for name in ("ALFWORLD_DATA", "DERL_GYM_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    source = tmp_path / "source" / "json_2.1.1"
    for part in alfworld_data.PARTS:
        write_games(source, part, ["pick_and_place_simple-Mug-None-Desk-1", "look_at_obj_in_light-CD-None-DeskLamp-2"])
    path = tmp_path / "data" / "alfworld" / "json_2.1.1.tar.xz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:xz") as file:
        file.add(source, "json_2.1.1")
    return path


def test_no_data(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="no ALFWorld games in .*home/.cache/alfworld: run alfworld-download"):
        find_root()
    with pytest.raises(FileNotFoundError, match="no ALFWorld games in /nowhere: run"):
        ALFWorld("/nowhere")
    assert not home.exists(), "looking for data makes no folder"


@pytest.mark.parametrize("inner", ["", "json_2.1.1", "alfworld", "alfworld/json_2.1.1"])
def test_places(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: str) -> None:
    root = tmp_path / "place" / inner
    (root / "train").mkdir(parents=True)
    assert find_root(str(tmp_path / "place")) == root
    for name in ("ALFWORLD_DATA", "DERL_GYM_DATA"):
        monkeypatch.setenv(name, str(tmp_path / "place"))
        assert find_root() == root
        monkeypatch.delenv(name)


def test_where_alfworld_download_writes(home: Path) -> None:
    (home / ".cache" / "alfworld" / "json_2.1.1" / "train").mkdir(parents=True)
    assert find_root() == home / ".cache" / "alfworld" / "json_2.1.1"


def test_what_was_asked_for_wins(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name / "train").mkdir(parents=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "a"))
    monkeypatch.setenv("DERL_GYM_DATA", str(tmp_path / "b"))
    assert find_root() == tmp_path / "a"
    assert find_root(str(tmp_path / "c")) == tmp_path / "c"
    with pytest.raises(FileNotFoundError):
        find_root(str(tmp_path / "d"))


def test_an_archive_is_unpacked_once(home: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = find_root(str(archive.parents[1]))
    assert root.is_relative_to(home / ".cache" / "derl_gym" / "alfworld")
    assert (home / ".cache" / "derl_gym" / "alfworld").stat().st_mode & 0o077 == 0, "private"
    assert len(list_games(root, "valid_seen", check=False)) == 2
    before = (root / "train").stat().st_ino
    assert find_root(str(archive.parent)) == root, "the same archive, named by its folder"
    assert (root / "train").stat().st_ino == before
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "other"))
    assert find_root(str(archive.parent)).is_relative_to(home / "other")


def test_a_killed_unpacking_leaves_nothing_half_done(home: Path, archive: Path) -> None:
    left = home / ".cache" / "derl_gym" / "alfworld" / "unpacking-abc"
    (left / "json_2.1.1" / "train").mkdir(parents=True)
    root = find_root(str(archive.parent))
    assert len(list_games(root, "train", check=False)) == 2
    assert not left.exists()


def _find(folder: str, queue) -> None:
    queue.put(str(find_root(folder)))


def test_two_processes_unpack_at_once(home: Path, archive: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_find, args=(str(archive.parent), queue)) for _ in range(3)]
    for process in processes:
        process.start()
    assert len({queue.get(timeout=60) for _ in processes}) == 1
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert not list((home / ".cache" / "derl_gym" / "alfworld").glob("unpacking-*"))


@pytest.mark.parametrize("damage", ["cut", "text", "other"])
def test_a_damaged_archive(home: Path, archive: Path, damage: str) -> None:
    if damage == "other":
        with tarfile.open(archive, "w:xz") as file:
            file.add(__file__, "something.py")
    else:
        archive.write_bytes(archive.read_bytes()[:200] if damage == "cut" else b"no archive")
    with pytest.raises(ValueError, match="json_2.1.1.tar.xz is damaged"):
        find_root(str(archive.parent))
    assert [path.name for path in (home / ".cache" / "derl_gym" / "alfworld").iterdir()] == ["lock"]


def test_an_archive_cannot_write_elsewhere(home: Path, archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive, "w:xz") as file:
        file.add(__file__, "../../escaped.py")
    with pytest.raises(ValueError, match="is damaged"):
        find_root(str(archive.parent))
    assert not list(tmp_path.rglob("escaped.py"))


def test_games_are_sorted_and_relative(tmp_path: Path) -> None:
    names = ["pick_two_obj_and_place-CD-None-Safe-308", "look_at_obj_in_light-CD-None-DeskLamp-2"]
    write_games(tmp_path, "train", names)
    assert list_games(tmp_path, "train", check=False) == [f"train/{name}/trial_1" for name in sorted(names)]
    assert ALFWorld(str(tmp_path), check_data=False).games("train") == [f"train/{n}/trial_1" for n in sorted(names)]


def test_games_that_alfworld_leaves_out(tmp_path: Path) -> None:
    write_games(tmp_path, "train", ["pick_and_place_simple-Mug-None-Desk-1"])
    write_games(tmp_path, "train", ["pick_and_place_simple-Mug-None-Desk-2"], solvable=False)
    write_games(tmp_path, "train", ["pick_and_place_with_movable_recep-CD-Bowl-Desk-3"])
    write_games(tmp_path, "train", ["pick_heat_then_place_in_recep-AppleSliced-None-Desk-4"])
    (tmp_path / "train" / "pick_and_place_simple-Mug-None-Desk-5" / "trial_1").mkdir(parents=True)
    assert list_games(tmp_path, "train", check=False) == ["train/pick_and_place_simple-Mug-None-Desk-1/trial_1"]


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    write_games(tmp_path, "train", ["pick_and_place_simple-Mug-None-Desk-1"])
    with pytest.raises(ValueError, match="train has 1 games, not the 3553 of ALFWorld's train: .*check_data=False"):
        ALFWorld(str(tmp_path)).games("train")
    with pytest.raises(FileNotFoundError, match="valid_seen is gone"):
        ALFWorld(str(tmp_path)).games("valid_seen")
    with pytest.raises(ValueError, match="ALFWorld has the parts train, valid_seen, valid_unseen, not 'test'"):
        ALFWorld(str(tmp_path)).games("test")


def test_types() -> None:
    assert game_type("train/pick_heat_then_place_in_recep-Mug-None-Desk-1/trial_1") == "heat"
    assert game_type("valid_seen/look_at_obj_in_light-CD-None-DeskLamp-2/trial_1") == "look"
    with pytest.raises(ValueError, match="'train/pick_and_place_with_movable_recep-CD/t' is of no known type"):
        game_type("train/pick_and_place_with_movable_recep-CD/t")


def test_the_published_games(data_dir: Path) -> None:
    world = ALFWorld(str(data_dir))
    assert {part: len(world.games(part)) for part in world.parts} == alfworld_data.COUNTS
    types = [game_type(game) for game in world.games("train")]
    assert {kind: types.count(kind) for kind in alfworld_data.TYPES.values()} == {
        **{"pick": 790, "look": 308, "clean": 650},
        **{"heat": 459, "cool": 533, "two": 813},
    }
