"""The faults of faults.py: what each does to a running search, and what a user then does.

Every function starts the search, strikes at a random moment, waits for its end and puts the machine right; what
follows, ``derl-gym resume`` and the comparison, is the same for all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
from fault_search import Missed, Search, Skipped

PAGE, SECTOR = 4096, 512
_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile int64_t *offset;
static int (*real)(clockid_t, struct timespec *);
static void load(void) {
    int file = open(getenv("FAULTS_CLOCK"), O_RDONLY);
    offset = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    real = dlsym(RTLD_NEXT, "clock_gettime");
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) load();
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += *offset;
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *place) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (place) *place = found.tv_sec;
    return found.tv_sec;
}
"""
"""A library that is loaded before all others and shifts the wall clock by the seconds in a file; others are let be."""


def driver(search: Search) -> None:
    """SIGKILL of the driver, also while it starts."""
    search.start()
    time.sleep(search.rng.uniform(0.05, 0.95) * search.seconds)
    search.alive()
    assert search.process is not None
    search.process.kill()
    search.ended(codes=[-signal.SIGKILL])


def inner_run(search: Search) -> None:
    """SIGKILL of an inner run, which is tried again: the search goes on."""
    _kill(search, lambda pid: pid)


def fork_server(search: Search) -> None:
    """SIGKILL of the fork server, whose inner runs die with it."""
    _kill(search, lambda pid: psutil.Process(pid).ppid())


def ray_worker(search: Search) -> None:
    """SIGKILL of the Ray worker above a fork server."""
    _kill(search, lambda pid: next(one.pid for one in psutil.Process(pid).parents() if one.name().startswith("ray::")))


def ray_node(search: Search) -> None:
    """SIGKILL of the process that everything on a node descends from; the search goes on with the other node."""
    search.start()
    search.moment()
    search.cluster.kill()
    search.ended()
    search.cluster.replace()


def _kill(search: Search, victim: Callable[[int], int]) -> None:
    search.start()
    search.moment()
    for _ in range(100):
        try:
            os.kill(victim(search.inner_run()), signal.SIGKILL)
            break
        except (psutil.NoSuchProcess, ProcessLookupError, StopIteration):
            continue  # this very run had just ended
    else:
        raise Missed
    search.ended()


def full_disk(search: Search) -> None:
    """The disk of the run directory is full, but for some pages; then it is made larger."""
    size = 16 << 20
    _mount(search, "-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    search.start()
    search.moment()
    left = PAGE * search.rng.randint(0, 8)
    with (search.run_dir / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while shutil.disk_usage(search.run_dir).free > left:
            filler.write(bytes(PAGE))
    search.ended("disk full", "No space left", "disk is full", codes=[0, 1, 2])
    _run("mount", "-o", f"remount,size={4 * size}", str(search.run_dir))


def read_only(search: Search) -> None:
    """The run directory becomes read-only (a bind mount over it); then it is writable again."""
    search.start()
    search.moment()
    _mount(search, "--bind", str(search.run_dir))
    _run("mount", "-o", "remount,bind,ro", str(search.run_dir))
    search.ended("Read-only file system", codes=[0, 1, 2])
    search.refused("Read-only file system")
    search.after.close()


def damaged(search: Search) -> None:
    """The driver is killed, and then the ledger's last page is damaged.

    A ledger that is opened all the same must be right. One that is refused cannot be repaired: the same search is begun
    anew, and the cache folder of the old one (``--cache-dir``) has the trials that had ended.
    """
    search.extra = ["--cache-dir", str(search.folder / "cache")]
    search.start()
    search.moment()
    assert search.process is not None
    search.process.kill()
    search.ended(codes=[-signal.SIGKILL])
    path = search.run_dir / "ledger.sqlite"
    if search.rng.random() < 0.7:  # else as the kill left it: the write-ahead log may hold a newer copy of the page
        db = sqlite3.connect(path)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
    size = path.stat().st_size
    if not size:
        raise Missed  # nothing but the write-ahead log so far
    length = search.rng.choice([PAGE, PAGE // 2, SECTOR])
    begin = size - PAGE + length * search.rng.randrange(PAGE // length)
    wrong, how = search.rng.choice([(bytes(length), "zeros"), (search.rng.randbytes(length), "random bytes")])
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(wrong)
    code, said = search.outcome()
    if code == 0:
        search.found.notes.append(f"{length} bytes of the last page became {how}: opened all the same")
        return
    search.found.notes.append(f"{length} bytes of the last page became {how}: refused")
    if "is damaged" not in said:
        search.complain(f"exit code {code}: {said[-600:]}")
    shutil.move(search.run_dir, search.folder / "damaged")
    search.ignored.add("cached")


def clock(search: Search) -> None:
    """The wall clock jumps by hours or a day, mostly back; inner runs have a limit of 60 s."""
    folder = search.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "clock.c").write_text(_CLOCK)
    (folder / "offset").write_bytes(bytes(8))
    if shutil.which("cc") is None or sys.platform != "linux":
        raise Skipped("it needs Linux and a C compiler")
    _run("cc", "-shared", "-fPIC", "-O1", "-o", str(folder / "clock.so"), str(folder / "clock.c"))
    search.environment |= {"LD_PRELOAD": str(folder / "clock.so"), "FAULTS_CLOCK": str(folder / "offset")}
    search.start()
    search.moment()
    with (folder / "offset").open("r+b") as file:
        file.write(struct.pack("q", search.rng.choice([-3600, -86400, -10, 86400])))
    search.ended()


def two_drivers(search: Search) -> None:
    """A second driver on the directory while the first starts or runs: one of them is refused, the other goes on."""
    first = search.start()
    time.sleep(search.rng.uniform(0.0, 0.3) * search.seconds)
    second = search.start(search.command)
    outcome = search.wait(second)
    alone = first.poll() is not None
    outcomes = [search.wait(first), outcome]
    codes = [code for code, _ in outcomes]
    if codes == [0, 0] and alone:
        raise Missed  # the first had ended before the second began to write
    refused = [code in (1, 2) and "is being written by process" in said for code, said in outcomes]
    if sorted(codes)[0] != 0 or sum(refused) != 1:
        search.complain(f"expected one refusal, got {[(code, said[-300:]) for code, said in outcomes]}")
    search.process = second if refused[0] else first
    search.look()
    search.count_orphans()


KINDS: dict[str, Callable[[Search], None]] = {
    "driver killed": driver,
    "inner run killed": inner_run,
    "fork server killed": fork_server,
    "Ray worker killed": ray_worker,
    "Ray node killed": ray_node,
    "disk full": full_disk,
    "read-only directory": read_only,
    "last page damaged": damaged,
    "clock set back": clock,
    "two drivers": two_drivers,
}
"""By the name that the table has."""


def _mount(search: Search, *how: str) -> None:
    """Mount something on the run directory until ``search.after`` is closed."""
    search.run_dir.mkdir(parents=True, exist_ok=True)
    _run("mount", *how, str(search.run_dir))
    search.after.callback(subprocess.run, ["umount", "-l", str(search.run_dir)], check=True)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise Skipped(f"`{command[0]}` does not work here: {said.strip().rpartition(': ')[2]}") from error
