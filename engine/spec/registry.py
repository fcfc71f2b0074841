"""From a method's name to a drafter for one request, and what one engine's drafters share."""

from collections.abc import Callable, Sequence
from functools import cached_property

from engine.config import SpeculationConfig
from engine.errors import ConfigError
from engine.spec.auto import Auto
from engine.spec.datastore import Datastore
from engine.spec.drafter import Drafter
from engine.spec.goose import Goose
from engine.spec.lookahead import Lookahead
from engine.spec.planner import Planner
from engine.spec.prompt_lookup import PromptLookup
from engine.spec.ptd import Ptd
from engine.spec.rest import Rest
from engine.spec.self_draft import SelfDraft
from engine.spec.successor_matrix import SuccessorMatrix
from engine.spec.suffix import Suffix
from engine.spec.suffix_tree import SuffixTree
from engine.spec.token_recycling import TokenRecycling
from engine.types import SpeculationPlan

Encode = Callable[[str], list[int]]


class Shared:
    """State that outlives a request. Each part exists only once somebody asks for it."""

    def __init__(
        self,
        config: SpeculationConfig,
        eos_token_ids: frozenset[int],
        planner: Planner,
        encode: Encode | None = None,
    ) -> None:
        """`encode`: text to ids without special tokens, to check a datastore with."""
        self.config = config
        self.eos_token_ids = eos_token_ids
        self.planner = planner
        self._encode = encode

    @cached_property
    def matrix(self) -> SuccessorMatrix | None:
        """Token Recycling's matrix, if requests share one."""
        config = self.config.token_recycling
        return SuccessorMatrix(config.top_k) if config.shared else None

    @cached_property
    def suffix_tree(self) -> SuffixTree | None:
        """SuffixDecoding's tree of answers, if requests share one."""
        config = self.config.suffix
        return SuffixTree(config.max_depth, config.max_shared_tokens) if config.shared else None

    @cached_property
    def datastore(self) -> Datastore:
        """REST's datastore. Raises ConfigError if none is configured or it cannot be used."""
        path = self.config.rest.datastore
        if path is None or self._encode is None:
            raise ConfigError(
                "speculation.rest.datastore: not set; `treeline datastore build` writes one"
            )
        return Datastore.load(path, self._encode)

    def state_sizes(self) -> dict[str, int]:
        """Entries by method of what outlives requests, as `Drafter.state_size` counts a request's.
        The datastore is a file, mapped and never written."""
        cache = self.planner.cache
        kept = {
            "auto": sum(map(len, cache.tries)) + len(cache.successors) if cache is not None else 0,
            "token_recycling": len(self.matrix) if self.matrix is not None else 0,
            "suffix": len(self.suffix_tree) if self.suffix_tree is not None else 0,
        }
        return {method: size for method, size in kept.items() if size}


Factory = Callable[[Shared, SpeculationPlan, int], Drafter | None]


def _auto(shared: Shared, plan: SpeculationPlan, _seed: int) -> Drafter:
    drafter = Auto(plan, shared.config.auto, shared.eos_token_ids)
    drafter.join(shared.planner)
    return drafter


FACTORIES: dict[str, Factory] = {
    "off": lambda _shared, _plan, _seed: None,
    "auto": _auto,
    "goose": lambda shared, plan, _seed: Goose(plan, shared.config.goose),
    "ptd": lambda shared, plan, seed: Ptd(plan, shared.config.ptd, seed, shared.eos_token_ids),
    "ptd_plus": lambda shared, plan, seed: Ptd(
        plan, shared.config.ptd_plus, seed, shared.eos_token_ids
    ),
    "prompt_lookup": lambda shared, plan, _seed: PromptLookup(plan, shared.config.prompt_lookup),
    "token_recycling": lambda shared, plan, _seed: TokenRecycling(
        plan, shared.config.token_recycling, shared.matrix
    ),
    "suffix": lambda shared, plan, _seed: Suffix(plan, shared.config.suffix, shared.suffix_tree),
    "lookahead": lambda shared, plan, seed: Lookahead(plan, shared.config.lookahead, seed),
    "self_draft": lambda shared, plan, seed: SelfDraft(plan, shared.config.self_draft, seed),
    "rest": lambda shared, plan, _seed: Rest(plan, shared.config.rest, shared.datastore),
}


def build_drafter(
    shared: Shared, plan: SpeculationPlan, seed: int, prediction: Sequence[int] = ()
) -> Drafter | None:
    """A fresh drafter for one request, or None for plain decoding.

    Raises ValueError for a `prediction` that the method would ignore.
    """
    drafter = FACTORIES[plan.method](shared, plan, seed)
    if prediction:
        if not isinstance(drafter, Auto):
            raise ValueError(f"method {plan.method} does not read predictions")
        drafter.expect(prediction)
    return drafter
