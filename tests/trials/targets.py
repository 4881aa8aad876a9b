"""Target functions of the pool's tests; they run in forked children."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def quick(payload, folder):
    return {"payload": payload, "pid": os.getpid(), "folder": str(folder)}
