"""A step's trees: each drafter's own, and those that share the step's rows at one price."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

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
        is_priced = [_is_priced(work) for work in works]
        done = [
            [] if waits else self._draft(work) for work, waits in zip(works, is_priced, strict=True)
        ]
        priced = [work for work, waits in zip(works, is_priced, strict=True) if waits]
        if priced:
            rows = sum([work.end - work.start for work in works]) - len(priced)
            rows += sum([len(tree) - 1 for found in done for _, tree in found if tree])
            draft = self._planned if self._share(priced, rows) else self._draft
            for place, waits in enumerate(is_priced):
                if waits:
                    done[place] = draft(works[place])
        return [drafted for found in done for drafted in found]

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

    def _share(self, works: Sequence[Work], rows: int) -> bool:
        """Plan the trees of priced drafters; false if that failed."""
        requests = [
            (work.request.drafter, partial(self._limits, work.request))
            for work in works
            if isinstance(work.request.drafter, Auto)
        ]
        try:
            self._planner.plan(requests, rows)
        except Exception as error:  # the request at fault fails in its own draft
            log.error("the step's plan failed", exc_info=error)
            return False
        return True

    def _planned(self, work: Work) -> list[Drafted]:
        drafter = work.request.drafter
        assert isinstance(drafter, Auto)
        tree = drafter.take()
        return _anchored(work) if tree is None else [(work, tree)]

    def _draft(self, work: Work) -> list[Drafted]:
        """The work with its tree, as a list of one; empty if drafting ended the request."""
        request = work.request
        if not work.is_decoding:
            return [(work, None)]
        if request.drafter is None or request.is_complete:
            return _anchored(work)
        try:
            return [(work, request.drafter.draft(self._limits(request)))]
        except Exception as error:
            self._fail(request, error)
            return []

    def _limits(self, request: Request) -> DraftLimits:
        limits = request.limits()
        return replace(limits, depth=0, explore_depth=0) if self._is_plain else limits


def _anchored(work: Work) -> list[Drafted]:
    return [(work, TokenTree.anchored(work.request.token_ids[-1]))]


def _is_priced(work: Work) -> bool:
    request = work.request
    return isinstance(request.drafter, Auto) and work.is_decoding and not request.is_complete
