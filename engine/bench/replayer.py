"""Walks a drafter along recorded text: tau without the model, in seconds.

A drafter must learn from what it was told and from nothing else. On the recorded text the target's
rows are known; a rejected node lies beside it, and what the target would have said there nobody
knows. So `observe` gets the tree restricted to its known nodes, the anchor and the accepted path:
nodes behind the last accepted one are cut off, and a rejected node before it, whose index must
stay, becomes a second copy of the first accepted node, marked as exploration. Nothing can be
learned from that copy that the node itself does not teach. This hurts methods that harvest rejected
rows (the real engine gives them more), and methods that live on exploration nodes cannot be
replayed at all.
"""

from dataclasses import replace

from engine.bench.arm import Arm
from engine.bench.reliability import Reliability
from engine.bench.replay_row import Replayed
from engine.bench.trace import Recording, Trace
from engine.config import SpeculationConfig
from engine.errors import ConfigError
from engine.spec.auto import Auto
from engine.spec.drafter import Drafter, DraftLimits, StepResult
from engine.spec.planner import Planner
from engine.spec.registry import Shared, build_drafter
from engine.spec.step_cost import StepCost
from engine.spec.tree import EXPLORE, TokenTree
from engine.spec.walk import walk
from engine.types import SpecStats

# They live on exploration nodes; `rest` on a tokenizer, to read its datastore.
NOT_REPLAYED = ("ptd", "ptd_plus", "lookahead", "self_draft", "rest")


class Replayer:
    """One arm at one slope. What it learns across requests, it keeps from trace to trace.

    `auto` is priced by the modelled cost and replays without its exploration.
    """

    def __init__(
        self,
        arm: Arm,
        config: SpeculationConfig,
        slope: float,
        recording: Recording,
        reliability: Reliability | None = None,
    ) -> None:
        """`reliability`: takes in what `auto` predicts.

        Raises ConfigError for a method that needs more than a recording."""
        if arm.plan.method == "rest":
            raise ConfigError("rest cannot be replayed: no recording has its datastore's tokenizer")
        auto = replace(config.auto, cost_slope=slope, explore=False)
        self._arm = arm
        bigrams = recording.bigrams
        if bigrams is not None and bigrams.width != auto.width:
            raise ConfigError(
                f"speculation.auto.width is {auto.width}; the recording was made with "
                f"{bigrams.width}"
            )
        self._planner = Planner(auto, StepCost.sloped(slope, is_fixed=True), bigrams)
        if reliability is not None:
            reliability.watch(self._planner.calibrator)
        self._shared = Shared(replace(config, auto=auto), recording.eos_token_ids, self._planner)

    @property
    def is_priced(self) -> bool:
        """Whether the slope changes what the arm drafts."""
        return isinstance(self._build(), Auto)

    def replay(self, trace: Trace) -> Replayed:
        """Decode one trace. Raises ConfigError if the method needs what no recording has."""
        drafter = self._build()
        tokens = list(trace.prompt_token_ids)
        text = [*tokens, *trace.token_ids]
        if drafter is not None:
            self._begin(drafter, trace, tokens)
        stats, predicted = SpecStats(), 0.0
        while len(tokens) < len(text):
            anchor = len(tokens) - 1
            tree = TokenTree.anchored(tokens[-1])
            if drafter is not None:
                tree = drafter.draft(self._limits(trace, len(tokens)))
                self._check(tree)
                predicted += self._planner.predicted_tokens if isinstance(drafter, Auto) else 0.0
            step = _walk(tree, tokens, text)
            stats += step.stats
            if drafter is not None and len(tokens) < len(text):
                drafter.observe(_known(tree, step.path, trace, anchor, drafter))
            if isinstance(drafter, Auto):
                self._planner.observe(
                    step.num_tokens, len(tree), self._planner.cost(len(tree)), 0.0
                )
        if isinstance(drafter, Auto):
            drafter.finish()
        return Replayed(stats, 1, predicted)

    def _build(self) -> Drafter | None:
        return build_drafter(self._shared, self._arm.plan, 0)

    def _begin(self, drafter: Drafter, trace: Trace, tokens: list[int]) -> None:
        needs, width = drafter.needs, trace.rows.token_ids.shape[1]
        if needs.top_k > width:
            raise ConfigError(
                f"{self._arm.label} reads {needs.top_k} tokens per row; {width} were recorded"
            )
        drafter.begin(tokens)
        if needs.prompt_rows and len(tokens) > 1:
            drafter.observe_prompt(0, trace.rows_at(range(len(tokens) - 1), needs.top_k))

    def _limits(self, trace: Trace, known: int) -> DraftLimits:
        """As the engine would set them, which does not know where the text ends."""
        plan = self._arm.plan
        left = len(trace.prompt_token_ids) + trace.max_tokens - known - 1
        return DraftLimits(plan.width, min(plan.depth, left), left, plan.budget)

    def _check(self, tree: TokenTree) -> None:
        if tree.num_explored_tokens:
            raise ConfigError(
                f"{self._arm.label} cannot be replayed: it lives on exploration nodes, "
                "and no recording holds what the model says at these"
            )


class _Step:
    """One walk along the text: the accepted path, and what it counts for."""

    def __init__(self, path: list[int], tree: TokenTree, num_tokens: int) -> None:
        is_hit = tree.num_draft_tokens > 0
        self.path = path
        self.num_tokens = num_tokens
        self.stats = SpecStats(
            steps=1,
            drafts=int(is_hit),
            draft_tokens=tree.num_draft_tokens,
            accepted_tokens=len(path),
            hit_tokens=num_tokens if is_hit else 0,
            tokens=num_tokens,
        )


def _walk(tree: TokenTree, tokens: list[int], text: list[int]) -> _Step:
    """Commit to `tokens` what the tree gives."""

    def draw(_: int) -> int:
        return text[len(tokens)]

    def is_final(token_id: int) -> bool:
        tokens.append(token_id)
        return len(tokens) == len(text)

    outcome = walk(tree, draw, is_final)
    return _Step(outcome.path, tree, len(outcome.token_ids))


def _known(
    tree: TokenTree, path: list[int], trace: Trace, anchor: int, drafter: Drafter
) -> StepResult:
    """The step as the drafter may see it. `anchor`: its position."""
    known, positions = restricted(tree, path)
    text = trace.prompt_token_ids + trace.token_ids
    return StepResult(
        known,
        trace.rows_at([anchor + depth for depth in positions], drafter.needs.top_k),
        path,
        text[anchor + 1 : anchor + 2 + len(path)],
    )


def restricted(tree: TokenTree, path: list[int]) -> tuple[TokenTree, list[int]]:
    """`tree` without its unknown nodes, `path` at its old indices; each node's depth in the text.

    `path`: accepted nodes, from the anchor's child downwards.
    """
    known = TokenTree.anchored(tree.token_ids[0])
    depths = [0]
    for node in range(1, path[-1] + 1 if path else 1):
        if node in path:
            known.add(tree.parents[node], tree.token_ids[node])
        else:
            known.add(0, tree.token_ids[path[0]], EXPLORE)
        depths.append(known.depths[node])
    return known, depths
