"""A step's trees: each drafter's own, and those that share the step's rows at one price."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.request import Request
from engine.scheduler import Work
from engine.spec.auto import Auto
from engine.spec.drafter import DraftLimits
from engine.spec.planner import Planner
from engine.spec.tree import TokenTree

log = logging.getLogger("treeline.engine")

Drafted = tuple[Work, TokenTree | None]  # None: a prompt chunk that does not end its prompt


class StepDrafts:
    """Draws up the trees of one step. A drafter's fault ends its own request, through `fail`."""

    def __init__(self, planner: Planner, fail: Callable[[Request, Exception], None]) -> None:
        self._planner = planner
        self._fail = fail
        self._is_plain = False

    def draft(self, works: Sequence[Work], *, is_plain: bool = False) -> list[Drafted]:
        """Each work with its tree. Priced drafters share what the others leave, at one price.

        May be called again before the trees are run. `is_plain`: anchors only.
        """
        self._is_plain = is_plain
        priced = [work for work in works if _is_priced(work)]
        done = {id(work): self._draft(work) for work in works if not _is_priced(work)}
        if priced:
            rows = sum(work.end - work.start for work in works) - len(priced)
            rows += sum(len(tree) - 1 for found in done.values() for _, tree in found if tree)
            self._share(priced, rows)
        return [
            drafted
            for work in works
            for drafted in (done[id(work)] if id(work) in done else self._draft(work))
        ]

    def learn(
        self,
        drafted: Sequence[Drafted],
        tokens: int,
        forward: float,
        drafting: float,
        walking: float,
    ) -> float:
        """Tell the planner what a step of its own took; returns what it had expected of it.

        Steps with prompt chunks or other methods say nothing about the planner's trees.
        """
        priced = sum(isinstance(work.request.drafter, Auto) for work, tree in drafted if tree)
        if not priced:
            return 0.0
        if priced == len(drafted) and all(work.end - work.start == 1 for work, _ in drafted):
            rows = sum(len(tree) for _, tree in drafted if tree)
            self._planner.observe(tokens, rows, forward, drafting, walking)
        else:
            self._planner.pass_by()
        return self._planner.predicted_tokens

    def _share(self, works: Sequence[Work], rows: int) -> None:
        requests = [
            (work.request.drafter, self._limits(work.request))
            for work in works
            if isinstance(work.request.drafter, Auto)
        ]
        try:
            self._planner.plan(requests, rows)
        except Exception as error:  # the request at fault fails in its own draft
            log.error("the step's plan failed", exc_info=error)

    def _draft(self, work: Work) -> list[Drafted]:
        """The work with its tree, as a list of one; empty if drafting ended the request."""
        request = work.request
        if not work.is_decoding:
            return [(work, None)]
        if request.drafter is None or request.is_complete:
            return [(work, TokenTree.anchored(request.token_ids[-1]))]
        try:
            return [(work, request.drafter.draft(self._limits(request)))]
        except Exception as error:
            self._fail(request, error)
            return []

    def _limits(self, request: Request) -> DraftLimits:
        limits = request.limits()
        return replace(limits, depth=0, explore_depth=0) if self._is_plain else limits


def _is_priced(work: Work) -> bool:
    request = work.request
    return isinstance(request.drafter, Auto) and work.is_decoding and not request.is_complete
