"""From a method's name to a drafter for one request."""

from collections.abc import Callable

from engine.config import SpeculationConfig
from engine.spec.auto import Auto
from engine.spec.drafter import Drafter
from engine.spec.goose import Goose
from engine.spec.ptd import Ptd
from engine.types import SpeculationPlan

Factory = Callable[[SpeculationPlan, SpeculationConfig, int, frozenset[int]], Drafter | None]

FACTORIES: dict[str, Factory] = {
    "off": lambda plan, config, seed, eos: None,
    "goose": lambda plan, config, seed, eos: Goose(plan, config.goose),
    "ptd": lambda plan, config, seed, eos: Ptd(plan, config.ptd, seed, eos),
    "auto": lambda plan, config, seed, eos: Auto(plan, config.auto, eos),
}


def build_drafter(
    plan: SpeculationPlan, config: SpeculationConfig, seed: int, eos_token_ids: frozenset[int]
) -> Drafter | None:
    """A fresh drafter for one request, or None for plain decoding."""
    return FACTORIES[plan.method](plan, config, seed, eos_token_ids)
