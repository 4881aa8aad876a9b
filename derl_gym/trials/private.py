"""Files and folders for the user alone, whatever the umask: prompts, data and policies of a search are not for others.

What was there before, such as the folder that ``--out`` names, keeps its mode.
"""

from __future__ import annotations

import os
from pathlib import Path


def private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, with mode 0700."""
    for path in (*reversed(folder.absolute().parents), folder.absolute()):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def make_private(folder: Path) -> None:
    """Give a folder and what lies below it the modes 0700 and 0600. Links are left alone, and so is what they name."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600 that is there whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    os.replace(aside, path)
