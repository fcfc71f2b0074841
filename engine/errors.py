"""The engine's exceptions, in one hierarchy.

TreelineError
├── ConfigError          the configuration cannot be used; the start fails with one line
│   └── ModelError       the model cannot be found, loaded or served
├── RequestError         one request is invalid; carries the field for a 4xx answer
└── EngineDeadError      the engine thread has ended; every waiting request fails with it
"""


class TreelineError(Exception):
    """Base of everything that Treeline raises on purpose."""


class ConfigError(TreelineError):
    """The configuration cannot be used. The message is one line that a user can act on."""


class ModelError(ConfigError):
    """The model cannot be found, loaded or served by this engine."""


class RequestError(TreelineError):
    """A request is invalid. `param` names the field, `code` is OpenAI's machine-readable code."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class EngineDeadError(TreelineError):
    """The engine thread has ended; nothing can be served any more."""
