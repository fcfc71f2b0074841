"""What an administrator may change of the speculation while serving."""

from server.schemas.request_model import RequestModel


class SpeculationChange(RequestModel):
    """The default method, and the bounds on every tree. What is absent stays."""

    method: str | None = None
    width: int | None = None
    depth: int | None = None
    budget: int | None = None
