"""Python's garbage collector, kept out of the steps.

A full collection walks through everything that is alive, the loaded libraries and the model's
modules above all, and stops every thread for as long. None of that ever becomes garbage.
"""

import gc

# Objects made before a young collection, young ones before a middle one, middle ones before a full
# one. A step makes some thousands, and nearly all of them die by themselves.
_THRESHOLDS = (10_000, 20, 50)


def spare_the_collector() -> None:
    """Set aside what is loaded. Objects made later are collected as ever, less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
