"""Where ALFWorld's games lie, which ones there are, and of what type each is.

Games are folders with a ``game.tw-pddl``, as ``alfworld-download`` leaves them; an archive of them is unpacked once,
into the user's cache. Nothing here imports ALFWorld.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from derl_gym.tasks.data import DATA_VARIABLE

PARTS = ("train", "valid_seen", "valid_unseen")
COUNTS = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
"""Solvable games of ALFWorld's second release."""
GAME_FILE = "game.tw-pddl"
VERSION = "json_2.1.1"
TYPES = {
    "pick_and_place_simple": "pick",
    "look_at_obj_in_light": "look",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
    "pick_two_obj_and_place": "two",
}
"""Beginning of a game's folder name -> its type."""

_SOLVABLE = re.compile(rb'"solvable": *(true|false)')


def game_type(game_id: str) -> str:
    """``"pick"``, ``"look"``, ``"clean"``, ``"heat"``, ``"cool"`` or ``"two"``.

    Raises:
        ValueError: the folder's name tells none.
    """
    folder = game_id.split("/")[1] if "/" in game_id else game_id
    kind = TYPES.get(folder.split("-")[0])
    if kind is None:
        raise ValueError(
            f"game {game_id!r} is of no known type; its folder's name should begin with one of {list(TYPES)}"
        )
    return kind


def find_root(data_dir: str | None = None) -> Path:
    """The folder that holds train, valid_seen and valid_unseen.

    Looked for are ``data_dir`` alone where it is given, else ``$ALFWORLD_DATA``, the folder ``alfworld`` in
    ``$DERL_GYM_DATA``, and ``~/.cache/alfworld``, where ``alfworld-download`` writes. Each may be the folder itself or
    hold ``json_2.1.1``, ``alfworld`` or the archive ``json_2.1.1.tar.xz``, which is unpacked into the user's cache.

    Raises:
        FileNotFoundError: the games are in none of them.
        ValueError: the archive is damaged.
    """
    if data_dir:
        places = [Path(data_dir).expanduser()]
    else:
        places = [
            Path(os.environ[name]).expanduser() for name in ("ALFWORLD_DATA", DATA_VARIABLE) if os.environ.get(name)
        ]
        places.append(Path("~/.cache/alfworld").expanduser())
    for place in places:
        for folder in (place, place / VERSION, place / "alfworld", place / "alfworld" / VERSION):
            if any((folder / part).is_dir() for part in PARTS):
                return folder.absolute()
        for archive in (place / f"{VERSION}.tar.xz", place / "alfworld" / f"{VERSION}.tar.xz"):
            if archive.is_file():
                return _unpacked(archive)
    raise FileNotFoundError(
        f"no ALFWorld games in {', '.join(map(str, places))}: run alfworld-download, or give data_dir= or "
        f"$ALFWORLD_DATA (a folder with {', '.join(PARTS)}, or with {VERSION}.tar.xz)"
    )


def list_games(root: Path, part: str, check: bool = True) -> list[str]:
    """The ids of a part's solvable games: their folders relative to the root, sorted.

    As in ALFWorld's own code, games with movable receptacles and sliced objects are left out.

    Raises:
        FileNotFoundError: the part's folder is gone.
        ValueError: with ``check``, they are not as many as were published.
    """
    folder = root / part
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is gone: ALFWorld's games were there")
    every = sorted(path.parent.relative_to(root).as_posix() for path in folder.glob(f"*/*/{GAME_FILE}"))
    found = [game for game in every if "movable" not in game and "Sliced" not in game]
    if len(found) != COUNTS[part]:  # a download holds the unsolvable ones as well
        found = [game for game in found if _solvable(root / game / GAME_FILE)]
    if check and len(found) != COUNTS[part]:
        raise ValueError(
            f"{folder} has {len(found)} games, not the {COUNTS[part]} of ALFWorld's {part}: run alfworld-download "
            "again, or for games of your own give check_data=False"
        )
    return found


def _solvable(path: Path) -> bool:
    with path.open("rb") as file:
        with contextlib.suppress(OSError):
            file.seek(-8192, os.SEEK_END)  # where it stands in a file of 70 KB
        match = _SOLVABLE.search(file.read())
    if match:
        return match[1] == b"true"
    return bool(json.loads(path.read_bytes()).get("solvable"))


def _unpacked(archive: Path) -> Path:
    """The archive's content in the user's cache, unpacked now if it is not there: whole, or not at all."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "derl_gym" / "alfworld"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = cache / hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    with _locked(cache / "lock"):
        if not target.is_dir():
            for left in cache.glob("unpacking-*"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            aside = Path(tempfile.mkdtemp(prefix="unpacking-", dir=cache))
            try:
                with tarfile.open(archive) as file:
                    file.extractall(aside, filter="data")
                if not any((aside / VERSION / part).is_dir() for part in PARTS):
                    raise ValueError(f"it holds no {VERSION}/{PARTS[0]}")
                aside.rename(target)
            except (tarfile.TarError, EOFError, ValueError) as error:
                raise ValueError(f"{archive} is damaged: {error}") from error
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return target / VERSION


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; a process that dies lets go."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
