"""A long-lived process's memory: what Python's and the C library's collectors are left to do.

A full collection of Python's walks through everything that is alive, the loaded libraries and the
model's modules above all, and stops every thread for as long. None of that ever becomes garbage.

The C library keeps what was freed. Loading frees hundreds of megabytes among what stays; later
allocations wander through these holes and make ever more of their pages resident, as a leak would.
"""

import ctypes
import gc

GIVE_BACK_SECONDS = 60.0  # between two; each takes some milliseconds

# Objects made before a young collection, young ones before a middle one, middle ones before a full
# one. A step makes some thousands, and nearly all of them die by themselves.
_THRESHOLDS = (10_000, 20, 50)


def spare_the_collector() -> None:
    """Set aside what is loaded. Objects made later are collected as ever, less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def give_back() -> None:
    """Return freed pages to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
