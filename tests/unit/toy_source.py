"""A source whose every proposal is scripted by the path, and a calibrator that believes it."""

from collections.abc import Callable, Mapping, Sequence

from engine.spec.calibrator import Calibrator
from engine.spec.drafter import DraftLimits
from engine.spec.priced_tree import PricedTree
from engine.spec.token_source import NUM_SILENT, Proposal

LEVELS = [i / 100 for i in range(101)]  # code NUM_SILENT + i stands for probability i / 100
Script = Callable[[tuple[int, ...]], Mapping[int, int]]  # path -> token -> percent


class ToySource:
    """Proposes what `script` says of a path of tokens below the anchor."""

    priors: Sequence[float] = [0.0] * NUM_SILENT + LEVELS

    def __init__(self, script: Script) -> None:
        self._script = script

    def anchor(self) -> tuple[int, ...]:
        return ()

    def advance(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        return (*state, token)

    def propose(self, state: tuple[int, ...]) -> Proposal:
        return 0, [(token, NUM_SILENT + p) for token, p in self._script(state).items()]


def toy_tree(
    script: Script,
    *,
    width: int = 9,
    depth: int = 9,
    budget: int = 99,
    exploration: tuple[int, float] = (0, 0.0),
) -> PricedTree:
    """A priced tree over one toy source."""
    source = ToySource(script)
    limits = DraftLimits(width, depth, depth, budget)
    return PricedTree({0: source}, Calibrator([source.priors]), limits, exploration)


def random_script(rng, names: int = 3, depth: int = 3) -> Script:
    """Random probabilities, siblings of a sum up to 1, for all paths up to `depth` tokens."""
    known: dict[tuple[int, ...], dict[int, int]] = {}

    def script(path: tuple[int, ...]) -> Mapping[int, int]:
        if len(path) >= depth:
            return {}
        if path not in known:
            left, children = 100, {}
            for token in range(rng.randint(0, names)):
                percent = rng.randint(1, max(1, left // 2))
                left -= percent
                children[token] = percent
            known[path] = children
        return known[path]

    return script
