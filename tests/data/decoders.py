"""What decoders do at their worst. A module of its own: every process that decodes imports it."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

CRASH, HANG, FILL, ONCE = 3, 4, 5, 6  # widths of images that do it


def faulty(image: Any, flag: str = "") -> np.ndarray:
    """A preparation that does what decoders do at their worst."""
    if image.width == CRASH:
        os.kill(os.getpid(), signal.SIGSEGV)
    if image.width == HANG:
        time.sleep(1e6)
    if image.width == FILL:
        return np.ones(2**30, np.uint8)[:1] + np.ones(2**30, np.uint8)[:1]
    if image.width == ONCE and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return np.array([image.width, os.getpid() % 256], np.uint8)
