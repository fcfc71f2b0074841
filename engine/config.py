"""The engine's configuration: frozen, resolved once before start, never mutated.

The server reads YAML into these (server/settings.py) and names key and line of what is wrong there;
this module only knows meanings and ranges.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from engine.errors import ConfigError, RequestError
from engine.types import SpeculationPlan

METHODS = (
    "off",
    "auto",
    "goose",
    "ptd",
    "ptd_plus",
    "prompt_lookup",
    "token_recycling",
    "suffix",
    "lookahead",
    "self_draft",
    "rest",
)


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a number may take, both ends included; None leaves that end open."""

    low: float
    high: float | None = None


@dataclass(frozen=True, slots=True)
class OneOf:
    """The values that a word may take."""

    choices: tuple[str, ...]


Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0.0, 1.0)]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the weights are: exactly one of the three is set."""

    package: str | None = None  # an installed Python package that holds a GGUF file
    path: Path | None = None  # a local folder in transformers' layout
    hub: str | None = None  # a hub id, "owner/name"
    revision: str | None = None  # of the hub id

    def __post_init__(self) -> None:
        """Raises ConfigError unless exactly one place is named."""
        if sum(place is not None for place in (self.package, self.path, self.hub)) != 1:
            raise ConfigError("exactly one of package, path and hub must be set")
        if self.revision is not None and self.hub is None:
            raise ConfigError("revision goes with hub only")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model to serve, and as what numbers."""

    name: str
    source: ModelSource
    dtype: Annotated[str, OneOf(("auto", "float32", "bfloat16", "float16"))] = "auto"
    device: Annotated[str, OneOf(("auto", "cpu", "cuda"))] = "auto"
    max_model_len: Count | None = None  # None: the model's own context
    exact: bool = False  # refuse to start unless speculation is bit-identical to plain decoding
    attention: Annotated[str, OneOf(("auto", "triton", "sdpa"))] = "auto"
    cuda_graphs: Annotated[str, OneOf(("auto", "always", "never"))] = "auto"  # on a GPU
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class TreeBounds:
    """Upper bounds on every tree of this model; requests may only go below."""

    width: Annotated[int, Range(1, 256)] = 10
    depth: Annotated[int, Range(1, 256)] = 32
    budget: Annotated[int, Range(1, 1024)] = 128


@dataclass(frozen=True, slots=True)
class GooseConfig:
    """Goose's constants (arXiv 2604.02047, Table 5 and released defaults)."""

    budget: Count = 60
    max_budget: Count = 100  # reached at full confidence
    branch_depth: Count = 6
    width: Count = 10
    min_score: Share = 0.01
    spine_branch_ratio: Share = 0.5
    max_chain: Count = 20
    max_extended_chain: Count = 100
    long_match: Count = 8
    ngram_lengths: tuple[Count, ...] = (5, 4, 3)
    ema_alpha: Share = 0.3
    ema_initial: Share = 0.5
    spine_tiers: tuple[tuple[float, float], ...] = ((0.2, 0.15), (0.4, 0.30), (1.01, 0.50))
    extension_threshold: Share = 0.6
    max_bigrams: Count = 65536  # oldest keys leave first


@dataclass(frozen=True, slots=True)
class PtdConfig:
    """PTD's constants (arXiv 2607.10661)."""

    width: Count = 4  # children per node and spine nodes
    depth: Count = 6  # levels of each spine node's subtree
    initial_depth: Count = 2
    pool_nodes_per_key: Count = 60
    pool_keys: Count = 8192  # oldest keys leave first
    pool_depth: Count = 16  # levels of a trie, which verification would deepen without end
    max_candidates: Count = 60  # verified nodes per step
    max_explored: Count = 124  # draft nodes per step: the ceiling at width 4, depth 6
    # Beyond the paper. The faithful method has all of these off.
    pool_every_step: bool = False  # merge the draft tree before it has its full depth too
    pool_from_text: bool = False  # the prompt and the accepted text feed the pool
    text_continuation: Count = 8  # tokens that follow each text position into the pool
    rekey_verified: bool = False  # verified subtrees also under their inner tokens; root answers
    longest_key: Annotated[int, Range(1, 2)] = 1  # 2: look the last two tokens up, then the last
    refresh: bool = False  # what is met again counts as new when the oldest leaves
    realign: bool = False  # spine nodes that the text has overtaken step past it
    rare_seeds: bool = False  # start from the prompt's rarest tokens instead of random ones


@dataclass(frozen=True, slots=True)
class PtdPlusConfig(PtdConfig):
    """The improvements that an ablation found worth having; the others gave nothing measurable."""

    pool_from_text: bool = True
    rekey_verified: bool = True
    refresh: bool = True
    rare_seeds: bool = True


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """Lookahead decoding's constants (arXiv 2402.02057), as its authors run 7B models."""

    window: Count = 15  # W: columns
    ngram: Annotated[int, Range(3, 64)] = 5  # N: the key and its N - 1 tokens; N - 1 rows
    guesses: Count = 15  # G: n-grams kept per key, and verified per step
    pool_keys: Count = 8192  # oldest keys leave first
    pool_from_text: bool = False  # the prompt and the accepted text feed the pool


@dataclass(frozen=True, slots=True)
class SelfDraftConfig:
    """Self-Draft's constants (AAAI 2025), without its corpus: training-free and data-free."""

    branches: Count = 6  # B
    branch_len: Annotated[int, Range(4, 64)] = 6  # L: L - 2 live levels
    ngram: Count = 4  # tokens per pool entry; at most L - 1
    max_prefix: Count = 2  # tokens of a perturbation
    guesses: Count = 10  # n-grams kept per key, and verified per step
    pool_keys: Count = 8192  # oldest keys leave first


@dataclass(frozen=True, slots=True)
class PromptLookupConfig:
    """Prompt lookup decoding's constants, as its author and Spec-Bench run it."""

    max_ngram: Count = 3
    num_tokens: Count = 10  # copied whole or not at all


@dataclass(frozen=True, slots=True)
class TokenRecyclingConfig:
    """Token Recycling's constants (arXiv 2408.08696). Its tree is part of the method."""

    top_k: Annotated[int, Range(1, 8)] = 8
    shared: bool = False  # one matrix for all requests, as in the paper


@dataclass(frozen=True, slots=True)
class SuffixConfig:
    """SuffixDecoding's constants (arXiv 2411.04975), as its authors release it."""

    max_depth: Annotated[int, Range(2, 1024)] = 64  # match and draft together
    factor: Annotated[float, Range(0.0)] = 1.0  # drafted tokens per matched token
    offset: float = 0.0
    min_probability: Share = 0.1
    as_tree: bool = False  # else the likeliest path
    shared: bool = False  # also draft from what other requests were answered
    max_shared_tokens: Count = 1_000_000  # oldest answers leave first


@dataclass(frozen=True, slots=True)
class RestConfig:
    """REST's constants (arXiv 2311.08252) and the file that it retrieves from."""

    datastore: Path | None = None  # written by `build_datastore`
    max_suffix: Annotated[int, Range(1, 16)] = 16
    min_suffix: Annotated[int, Range(1, 16)] = 2
    max_occurrences: Count = 5000
    num_tokens: Count = 10  # that follow each occurrence
    max_nodes: Count = 64

    def __post_init__(self) -> None:
        """Raises ConfigError if no suffix length is left to look for."""
        if self.min_suffix > self.max_suffix:
            raise ConfigError("min_suffix must not be above max_suffix")


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """Treeline's own method: calibrated sources, and a price per node."""

    budget: Count = 128  # nodes per step and request, exploration included
    width: Count = 10  # children per node; successors kept per token
    order: Annotated[int, Range(1, 64)] = 16  # longest suffix whose occurrences are counted
    max_rows: Count = 65536  # tokens, pairs and triples with successors; the first leave first
    prior_weight: Annotated[float, Range(0.01)] = 8.0  # observations that a prior counts for
    half_life: Annotated[float, Range(1.0)] = 2000.0  # of an observation, in later ones
    explore: bool = False  # buy exploration nodes (PTD's draft tree) when they pay
    explore_width: Count = 3
    explore_depth: Count = 5
    max_explored: Count = 60  # exploration nodes per step
    watchdog: bool = True  # rest while drafting loses to plain decoding
    # Of the first start, to ask the model what follows each token of its vocabulary; 0: not at all.
    bigram_seconds: Annotated[float, Range(0.0)] = 60.0
    cost_slope: Annotated[float, Range(0.0)] | None = None  # plain steps per row; None: measured
    cache_scope: str | None = None  # draft from other requests' answers under this name; None: off
    cache_tokens: Count = 1_000_000  # of such answers; the oldest leave first

    def __post_init__(self) -> None:
        """Raises ConfigError if the exploration tree cannot hold its eldest chains."""
        if self.explore_width * self.explore_depth > self.max_explored:
            raise ConfigError("max_explored must be at least explore_width * explore_depth")


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """The default method, the bounds, and each method's own constants."""

    method: Annotated[str, OneOf(METHODS)] = "auto"
    tree: TreeBounds = field(default_factory=TreeBounds)
    goose: GooseConfig = field(default_factory=GooseConfig)
    ptd: PtdConfig = field(default_factory=PtdConfig)
    ptd_plus: PtdPlusConfig = field(default_factory=PtdPlusConfig)
    lookahead: LookaheadConfig = field(default_factory=LookaheadConfig)
    self_draft: SelfDraftConfig = field(default_factory=SelfDraftConfig)
    prompt_lookup: PromptLookupConfig = field(default_factory=PromptLookupConfig)
    token_recycling: TokenRecyclingConfig = field(default_factory=TokenRecyclingConfig)
    suffix: SuffixConfig = field(default_factory=SuffixConfig)
    rest: RestConfig = field(default_factory=RestConfig)
    auto: AutoConfig = field(default_factory=AutoConfig)

    def defaults(self, method: str) -> SpeculationPlan:
        """What `method` uses when a request names no bounds: its constants within the tree's."""
        tree = self.tree
        width, depth, budget, base = tree.width, tree.depth, tree.budget, tree.budget
        if method == "goose":
            width, budget, base = self.goose.width, self.goose.max_budget, self.goose.budget
        elif method in ("ptd", "ptd_plus"):
            ptd = self.ptd if method == "ptd" else self.ptd_plus
            width, depth = ptd.width, ptd.depth
        elif method == "auto":
            width, budget = self.auto.width, self.auto.budget
        budget = min(budget, tree.budget)
        return SpeculationPlan(
            method, min(width, tree.width), min(depth, tree.depth), budget, min(base, budget)
        )

    def resolve(
        self,
        method: str | None = None,
        width: int | None = None,
        depth: int | None = None,
        budget: int | None = None,
    ) -> SpeculationPlan:
        """One request's plan: its own wishes within the YAML's bounds, else the method's defaults.

        Raises RequestError naming `speculation.<field>`.
        """
        method = method or self.method
        if method not in METHODS:
            raise RequestError(
                f"Unknown speculation method {method!r}; known: {', '.join(METHODS)}.",
                param="speculation.method",
                code="invalid_value",
            )
        if method == "rest" and self.rest.datastore is None:
            raise RequestError(
                "Method rest needs a datastore (speculation.rest.datastore), and none is set.",
                param="speculation.method",
                code="unsupported_parameter",
            )
        for name, wish in (("width", width), ("depth", depth), ("budget", budget)):
            bound = getattr(self.tree, name)
            if wish is not None and not 1 <= wish <= bound:
                raise RequestError(
                    f"speculation.{name} must be between 1 and {bound}, got {wish}.",
                    param=f"speculation.{name}",
                    code="invalid_value",
                )
        plan = self.defaults(method)
        return SpeculationPlan(
            method,
            width or plan.width,
            depth or plan.depth,
            budget or plan.budget,
            budget or plan.base_budget,
        )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that the engine needs to start."""

    model: ModelConfig
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    max_batch: Annotated[int, Range(1, 1024)] = 8  # requests that run at once; more wait in order
    prefill_chunk: Count = 512  # prompt tokens per step, all requests together
    prefix_reuse: bool = True  # start from the longest prefix that a slot still holds
    check_invariants: bool = False  # verify the books after every step (tests, debugging)
