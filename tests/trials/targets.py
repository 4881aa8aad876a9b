"""Target functions of the pool's tests; they run in forked children."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def quick(payload, folder):
    return {"payload": payload, "pid": os.getpid(), "folder": str(folder)}


def surroundings(payload, folder):
    return {
        "device": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "mine": os.environ.get("MINE"),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "cwd": os.getcwd(),
        "path": sys.path,
        "group": os.getpgrp(),
        "pid": os.getpid(),
        "parent": os.getppid(),
        "stdin": os.read(0, 10).decode(),
        "descriptors": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
    }


def begin_and_end(payload, folder):
    begin = time.monotonic()
    time.sleep(payload["seconds"])
    return {"begin": begin, "end": time.monotonic(), "device": os.environ.get("CUDA_VISIBLE_DEVICES")}


def meets(payload, folder):
    """Wait until as many are here as the payload says; the result names the nodes of Ray among the ancestors."""
    import psutil

    begin, place = time.monotonic(), Path(payload["place"])
    place.mkdir(parents=True, exist_ok=True)
    Path(place, Path(folder).name).touch()
    while len(list(place.iterdir())) < payload["count"] and time.monotonic() < begin + 60:
        time.sleep(0.05)
    nodes = [parent.pid for parent in psutil.Process().parents() if parent.name() == "raylet"]
    device = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"begin": begin, "end": time.monotonic(), "device": device, "nodes": nodes}


def sleeps(payload, folder):
    time.sleep(payload["seconds"])
    return {"slept": payload["seconds"]}


def raises(payload, folder):
    raise ValueError(payload.get("message", "the target does not like this"))


def raises_at_first(payload, folder):
    seen = Path(folder, "seen")
    if not seen.exists():
        seen.touch()
        raise ValueError("only the first time")
    return {"ok": True}


def exits(payload, folder):
    sys.exit(payload["status"])


def leaves_at_once(payload, folder):
    os._exit(payload["status"])


def kills_itself(payload, folder):
    os.kill(os.getpid(), payload["signal"])
    time.sleep(60)


def out_of_memory(payload, folder):
    raise MemoryError


def out_of_device_memory(payload, folder):
    class OutOfMemoryError(RuntimeError):
        pass

    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def disk_full(payload, folder):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def returns_a_list(payload, folder):
    return [1, 2]


def prints(payload, folder):
    print("from Python")
    print("to stderr", file=sys.stderr)
    os.write(1, b"from the descriptor\n")
    subprocess.run(["echo", "from a grandchild"], check=True)
    print("without a newline", end="")
    return {}


def hangs_in_c_ignoring_sigterm(payload, folder):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc = ctypes.PyDLL(None)  # PyDLL keeps the interpreter's lock: nothing in Python can interrupt this
    while True:
        libc.sleep(60)


def leaves_a_grandchild(payload, folder):
    """A sleeping grandchild, its pid in a file; then end, or hang with it."""
    child = subprocess.Popen(["sleep", "60"])
    Path(folder, "grandchild").write_text(str(child.pid))
    if payload.get("hang"):
        time.sleep(60)
    return {"grandchild": child.pid}


def fills_the_folder(payload, folder):
    Path(folder, "big").write_bytes(b"x" * payload["bytes"])
    return {}
