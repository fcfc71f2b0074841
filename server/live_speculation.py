"""The speculation that requests get by default, which an administrator may change while serving."""

from dataclasses import replace

from engine.api import RequestError, SpeculationConfig, SpeculationPlan


class LiveSpeculation:
    """One value that changes as a whole, so that a thread which converts a request sees either.

    What was allocated at start (KV rows, series) bounds every later tree.
    """

    def __init__(self, start: SpeculationConfig) -> None:
        self._start = start
        self.current = start
        self.changed: frozenset[str] = frozenset()  # keys as in the YAML, such as "tree.width"

    def resolve(
        self,
        method: str | None = None,
        width: int | None = None,
        depth: int | None = None,
        budget: int | None = None,
    ) -> SpeculationPlan:
        """One request's plan under the current values. Raises RequestError."""
        return self.current.resolve(method, width, depth, budget)

    def change(self, method: str | None, bounds: dict[str, int]) -> None:
        """Set the default method and some of the bounds: width, depth, budget. Requests that came
        before keep theirs. Raises RequestError naming the field, and then changes nothing."""
        self._start.resolve(method)  # unknown, or without what it needs
        for name, value in bounds.items():
            most = getattr(self._start.tree, name)
            if not 1 <= value <= most:
                message = f"{name} must be between 1 and {most}, its value at start, got {value}."
                raise RequestError(message, param=name)
        tree = replace(self.current.tree, **bounds)
        self.current = replace(self.current, method=method or self.current.method, tree=tree)
        self.changed |= {f"tree.{name}" for name in bounds} | ({"method"} if method else set())
