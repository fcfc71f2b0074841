"""A long-lived process's memory: what Python's and the C library's collectors are left to do.

A full collection of Python's walks through everything that is alive, the loaded libraries and the
model's modules above all, and stops every thread for as long. None of that ever becomes garbage.

So what is loaded is set aside, and young collections are few. But then full ones would come hours
apart, and of each young one's survivors, which are what the running requests hold, some later die
in cycles: clients that left tie their sockets and tracebacks together.

The C library keeps what was freed. Loading frees hundreds of megabytes among what stays; later
allocations wander through these holes and make ever more of their pages resident.

Both look like a leak for as long as anyone watches, so both are put in order by the clock.
"""

import ctypes
import gc

TIDY_SECONDS = 60.0  # between two; each takes some milliseconds

# Objects made before a young collection, young ones before a middle one, middle ones before a full
# one. A step makes some thousands, and nearly all of them die by themselves.
_THRESHOLDS = (10_000, 20, 50)


def spare_the_collector() -> None:
    """Set aside what is loaded. Objects made later are collected as ever, less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def tidy() -> None:
    """Collect what has died in cycles since `spare_the_collector`, and give its memory back."""
    gc.collect()
    give_back()


def give_back() -> None:
    """Return freed pages to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
