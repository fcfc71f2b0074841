"""The engine's exceptions, in one hierarchy.

TreelineError
├── ConfigError          the configuration cannot be used; the start fails with one line
│   └── ModelError       the model cannot be found, loaded or served
├── RequestError         one request is invalid; carries the field for a 4xx answer
├── OverloadError        one request does not fit now; the same one may fit later
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


class OverloadError(TreelineError):
    """The machine has no room for a sound request now. A later attempt may succeed."""


class EngineDeadError(TreelineError):
    """The engine thread has ended; nothing can be served any more."""


_NO_MEMORY = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: Exception) -> bool:
    """Whether Python, numpy or torch raised `error` because an allocation failed.

    Torch says so with a class of its own for its allocator on a device, and only in the text of a
    RuntimeError for that of the CPU and for the device's libraries.
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(name in str(error) for name in _NO_MEMORY)
