"""Treeline's own method: every source at once, calibrated, at one price per node.

Copies, the target's earlier answers and what an exploration tree has walked ahead are right in
different places. Each names tokens; calibration tells what each naming is worth here and now; the
most probable paths become the tree, as many as pay for their rows.
"""

from collections.abc import Sequence
from functools import partial

from engine.config import AutoConfig
from engine.spec.adjacency_source import AdjacencySource, AdjacencyView, Tail
from engine.spec.calibrator import SHIFT
from engine.spec.context_source import ContextSource
from engine.spec.context_trie import ContextTrie, Point
from engine.spec.draft_tree import DraftNode, DraftTree
from engine.spec.drafter import DraftLimits, Needs, Rows, StepResult
from engine.spec.forced_source import ForcedSource, GrammarPath
from engine.spec.planner import Planner
from engine.spec.pool import Pool, Trie
from engine.spec.pool_source import PoolSource
from engine.spec.prediction_source import PredictionSource
from engine.spec.priced_tree import PricedTree
from engine.spec.step_cost import StepCost
from engine.spec.token_source import NUM_SILENT, TokenSource
from engine.spec.tree import TokenTree
from engine.types import SpeculationPlan

# Places among the sources: a key of the calibrator holds one code for each.
_CONTEXT, _ADJACENCY, _POOL, _CACHE, _PREDICTED, _FORCED = 0, 1, 2, 3, 6, 7
_MAX_SOURCES = 8
_POOL_NODES, _POOL_KEYS, _POOL_DEPTH = 60, 8192, 8
_MAX_PAIRS = 65536
_ASSUMED_SLOPE = 0.02
_MOST_SKIPS = 8  # plans from one tree without nodes to the next: as many as there were, at most


class Auto:
    """The drafter of one request. What it shares with others is its planner's.

    Until `join` it has a planner of its own, with an assumed cost.
    """

    def __init__(
        self, plan: SpeculationPlan, config: AutoConfig, eos_token_ids: frozenset[int]
    ) -> None:
        self._plan = plan
        self._config = config
        self._eos_token_ids = eos_token_ids
        self._planner: Planner | None = None
        self.is_scored = False  # whether the calibrator learns from the next step
        self._next: TokenTree | None = None
        self._prediction: Sequence[int] = ()
        self._grammar: GrammarPath | None = None
        self.begin(())

    def join(self, planner: Planner) -> None:
        """Draft under `planner` from now on. Called before `begin`."""
        self._planner = planner

    def expect(self, prediction: Sequence[int]) -> None:
        """Draft from the text that the client expects too. Called before `begin`."""
        self._prediction = prediction

    def constrain(self, grammar: GrammarPath) -> None:
        """Draft what the text's grammar, which follows it live, leaves no choice about too. Called
        before `begin`."""
        self._grammar = grammar

    @property
    def prediction(self) -> PredictionSource | None:
        """The source that follows the client's expected text, if there is one."""
        return self._predicted

    @property
    def planner(self) -> Planner:
        """Who decides how many nodes are drafted."""
        if self._planner is None:
            self._planner = Planner(self._config, StepCost.sloped(_ASSUMED_SLOPE))
        return self._planner

    @property
    def needs(self) -> Needs:
        """The best tokens of every row, of none in a plain step; of the prompt's rows too where
        they cost little and no other request waits for them."""
        planner = self.planner
        prompt_rows = planner.is_quiet and planner.has_cheap_rows and not planner.is_resting
        if self._grown is None and not prompt_rows:
            return Needs()
        return Needs(top_k=self._config.width, prompt_rows=prompt_rows)

    def begin(self, token_ids: Sequence[int]) -> None:
        """Start a request with what its planner's cache holds and nothing else."""
        config = self._config
        self._tokens = token_ids
        self._num_prompt_tokens = len(token_ids)
        self._trie = ContextTrie(token_ids, config.order, is_lazy=True)
        bigrams = self._planner.bigrams if self._planner is not None else None
        self._adjacency = AdjacencySource(config.width, config.max_rows, bigrams)
        self._num_counted = 0  # of the text's tokens, by adjacency
        self._pool = Pool(_POOL_NODES, _POOL_KEYS, _POOL_DEPTH, refresh=True)
        self._sources: dict[int, TokenSource] = {
            _CONTEXT: ContextSource(self._trie),
            _ADJACENCY: self._adjacency,
        }
        if config.explore:
            self._sources[_POOL] = PoolSource(self._pool, lambda: self._tokens)
        self._draft_tree = DraftTree(
            config.explore_width, config.explore_depth, config.max_explored
        )
        self._explored: list[DraftNode] = []
        self._verified: set[tuple[int, int]] = set()  # tokens that met outside exploration
        if config.cache_scope is not None and self.planner.cache is not None:
            older, younger = self.planner.cache.tries
            self._sources |= {
                _CACHE: ContextSource(older, partial(self._match_in, older)),
                _CACHE + 1: ContextSource(younger, partial(self._match_in, younger)),
                _CACHE + 2: AdjacencyView(self.planner.cache.successors, self._adjacency),
            }
        self._predicted: PredictionSource | None = None
        if self._prediction:
            self._predicted = PredictionSource(self._prediction, token_ids)
            self._sources[_PREDICTED] = self._predicted
        if self._grammar is not None:
            self._sources[_FORCED] = ForcedSource(self._grammar)
        self._grown: PricedTree | None = None  # None: the next tree was not looked for
        self._num_barren, self._num_skips = 0, 0  # trees without a node in a row; plans to skip
        self._next = None

    def _match_in(self, trie: ContextTrie) -> list[Point]:
        return trie.find(self._tokens)

    def finish(self) -> None:
        """The request has ended: hand its answer to the cache, if there is one."""
        cache = self._planner.cache if self._planner else None
        if cache is not None and len(self._tokens) > self._num_prompt_tokens:
            cache.add(self._tokens[self._num_prompt_tokens :])

    def observe_prompt(self, start: int, rows: Rows) -> None:
        """Learn what the target would say after each prompt token."""
        padded = [-1, -1, *self._tokens[: start + len(rows.token_ids)]]
        self._adjacency.observe(
            [(padded[i], padded[i + 1], padded[i + 2]) for i in range(start, len(padded) - 2)],
            rows,
        )

    # Drafting. The planner calls grow and keep; where it does not look for nodes, nothing is done.

    def draft(self, limits: DraftLimits) -> TokenTree:
        """The tree of the planner's last plan, or of a plan for this request alone."""
        if self._next is None:
            self.planner.plan([(self, lambda: limits)])
        return self.take() or TokenTree.anchored(self._tokens[-1])

    def take(self) -> TokenTree | None:
        """The tree of the planner's last plan, once; None if it was not to look for nodes."""
        tree, self._next = self._next, None
        return tree

    def is_due(self) -> bool:
        """Whether to look for nodes in the next plan: less and less often in vain."""
        self._num_skips = max(0, self._num_skips - 1)
        return self._num_skips == 0

    def grow(self, limits: DraftLimits) -> PricedTree:
        """A fresh tree to take nodes from."""
        plan = self._plan
        limits = DraftLimits(
            min(limits.width, plan.width),
            min(limits.depth, plan.depth),
            limits.explore_depth,
            min(limits.budget, plan.budget),
        )
        self._limits = limits
        self._trie.update()  # only now, since at rest it never comes to that
        self._adjacency.count(self._tokens[self._num_counted :])
        self._num_counted = len(self._tokens)
        self._adjacency.start(self._tail(len(self._tokens) - 1), self.planner.least_score)
        exploration = (0, 0.0)
        if self._config.explore and limits.depth > 0:
            offered = min(max(len(self._draft_tree), 1), self._config.max_explored)
            exploration = (offered, self.planner.exploration.per_node)
        self._grown = PricedTree(self._sources, self.planner.calibrator, limits, exploration)
        return self._grown

    def keep(self, size: int, *, is_scored: bool = True) -> float:
        """Make the next tree of the first `size` nodes; the tokens it is expected to give.

        `is_scored`: whether the calibrator should learn from what comes of it.
        """
        assert self._grown is not None
        tree, num_explored, tokens = self._grown.build(size)
        tree.token_ids[0] = self._tokens[-1]
        self._explored = self._draft_tree.add_to(tree, num_explored, self._limits.explore_depth)
        self._next = tree
        self._num_barren = 0 if len(tree) > 1 or not self.planner.may_skip else self._num_barren + 1
        self._num_skips = min(self._num_barren, _MOST_SKIPS)
        self._num_offered = num_explored
        self.is_scored = is_scored
        return tokens

    # Learning.

    def observe(self, result: StepResult) -> None:
        """Score every candidate of every committed position, then take in what is new."""
        grown, self._grown = self._grown, None
        if grown is None:
            return
        if self.is_scored:
            self._score(grown, result)
        self._learn_rows(result)
        if self._config.explore:
            answers: list[int] = result.rows.token_ids[:, 0].tolist()
            self._learn_verified(result.tree, answers)
            self._explore(result.tree, answers)

    def state_size(self) -> int:
        """Nodes of the text's trie and of the pool, rows of successors, pairs of verified tokens,
        tokens of a prediction."""
        size = len(self._trie) + self._pool.num_nodes + len(self._adjacency)
        return size + len(self._verified) + len(self._prediction)

    def _score(self, grown: PricedTree, result: StepResult) -> None:
        calibrator = self.planner.calibrator
        gained = 0
        is_gain = False
        before = self._tokens[-len(result.new_token_ids) - 1]
        for node, truth in zip((0, *result.path), result.new_token_ids, strict=True):
            for token, key in grown.candidates(node):
                is_hit = token == truth
                calibrator.observe(key, is_hit)
                if is_hit and _only_pool(key):
                    is_gain = is_gain or (before, truth) not in self._verified
            gained += is_gain
            before = truth
        if self._config.explore:
            gained = max(0, gained - 1) if is_gain else 0
            self.planner.exploration.observe(gained, result.tree.num_explored_tokens)

    def _learn_rows(self, result: StepResult) -> None:
        """Rows of explored nodes first, so that those that saw the true text overwrite them."""
        tree, rows = result.tree, result.rows
        anchor = len(self._tokens) - len(result.new_token_ids) - 1
        tails: list[Tail] = [self._tail(anchor)]
        for token, parent in zip(tree.token_ids[1:], tree.parents[1:], strict=True):
            above = tails[parent]
            tails.append((above[1], above[2], token))
        self._adjacency.observe(tails, rows, is_backward=True)
        cache = self.planner.cache
        if cache is not None:
            cache.successors.observe(tails, rows, is_backward=True)

    def _learn_verified(self, tree: TokenTree, answers: Sequence[int]) -> None:
        """Every verified subtree, with what the target said at its nodes, goes into the pool; not
        a leaf's answer alone, which adjacency knows."""
        num_verified = 1 + tree.num_draft_tokens
        tries: list[Trie] = [{} for _ in range(num_verified)]
        for node in range(num_verified - 1, 0, -1):  # the best child comes last, as the youngest
            tries[tree.parents[node]][tree.token_ids[node]] = tries[node]
        for trie, answer in zip(tries, answers, strict=False):
            trie[answer] = trie.pop(answer, {})
        if len(self._verified) > _MAX_PAIRS:
            self._verified.clear()
        for token, trie in zip(tree.token_ids, tries, strict=False):
            if len(trie) > 1 or any(trie.values()):
                self._pool.merge(token, trie)
            self._verified.update([(token, following) for following in trie])

    def _explore(self, tree: TokenTree, answers: Sequence[int]) -> None:
        """One step of the draft tree, if it was on offer: feed the pool, grow and prune."""
        if not self._num_offered:
            return
        draft_tree = self._draft_tree
        explored = answers[1 + tree.num_draft_tokens :]
        for node, answer in zip(self._explored, explored, strict=True):
            node.prediction = answer
        for _, token, trie in draft_tree.subtrees(tree.token_ids[0]):
            self._pool.merge(token, trie)
        draft_tree.attach()
        draft_tree.refill(answers[0])
        draft_tree.step_and_prune()
        draft_tree.drop_endings(self._eos_token_ids)
        draft_tree.trim()

    def _tail(self, index: int) -> Tail:
        """The three tokens that end at `index`."""
        tokens = self._tokens
        return (
            tokens[index - 2] if index > 1 else -1,
            tokens[index - 1] if index > 0 else -1,
            tokens[index],
        )


def _only_pool(key: int) -> bool:
    """Whether the pool named a candidate and no other source did."""
    mask = (1 << SHIFT) - 1
    codes = [key >> shift & mask for shift in range(0, _MAX_SOURCES * SHIFT, SHIFT)]
    named = [source for source, code in enumerate(codes) if code >= NUM_SILENT]
    return named == [_POOL]
