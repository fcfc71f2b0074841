"""The manners of every request body: strict types, no unknown field, null means absent."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from server.errors import bad_request


class RequestModel(BaseModel):
    """Base of all bodies and of the objects in them.

    `unsupported` names fields that exist elsewhere and are refused here, because an accepted field
    that does nothing misleads. An explicit null equals an absent field, as SDKs send it.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
    unsupported: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        present = {name: item for name, item in value.items() if item is not None}
        refused = next((name for name in present if name in cls.unsupported), None)
        if refused is not None:
            message = f"'{refused}' is not supported by this server."
            raise bad_request(message, refused, "unsupported_parameter")
        return present
