"""Jobs that write as any program does, with no thought of who may read it."""

from __future__ import annotations

import time


def writes(payload, folder):
    (folder / "policy").mkdir(mode=0o755)
    (folder / "policy" / "weights").write_text("x")
    (folder / "policy" / "weights").chmod(0o644)
    time.sleep(payload.get("seconds", 0))
    if payload.get("fail"):
        raise RuntimeError("no result")
    return {"written": True}
