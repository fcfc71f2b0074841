"""What is compared: a method under one set of bounds.

A sweep turns one method into many arms, so every number of a result must name the bounds it was
measured under; the arm carries both.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.config import SpeculationConfig
from engine.errors import ConfigError, RequestError
from engine.types import SpeculationPlan

REFERENCE = "off"
AXES = ("width", "depth", "budget")


@dataclass(frozen=True, slots=True)
class Arm:
    """One method as a request would ask for it. `label` is the method and its swept bounds."""

    label: str
    plan: SpeculationPlan


def arms(
    config: SpeculationConfig, methods: Iterable[str], sweep: Mapping[str, Sequence[int]]
) -> list[Arm]:
    """Plain decoding first, then each method once per combination of the swept bounds.

    `sweep`: values by axis, of AXES. Raises ConfigError for a value outside the YAML's bounds.
    """
    found = [Arm(REFERENCE, config.resolve(REFERENCE))]
    for method in methods:
        if method == REFERENCE:
            continue
        for values in itertools.product(*sweep.values()):
            wishes = dict(zip(sweep, values, strict=True))
            marks = [f"{axis[0]}{value}" for axis, value in wishes.items()]
            try:
                plan = config.resolve(method, **wishes)
            except RequestError as error:
                raise ConfigError(f"{'--sweep' if sweep else '--methods'}: {error}") from error
            found.append(Arm(" ".join([method, *marks]), plan))
    return found
