"""Speculation asked for by one request: an extension of both generating routes."""

from server.schemas.request_model import RequestModel


class SpeculationFields(RequestModel):
    """Which drafter, and how large its trees may be. The model's own bounds are checked where they
    are known. `exact`: demand that bits depend on the request's own tokens alone; it is refused
    where the engine cannot promise that, and changes nothing where it can."""

    method: str | None = None
    width: int | None = None
    depth: int | None = None
    budget: int | None = None
    stats: bool = False
    exact: bool = False
