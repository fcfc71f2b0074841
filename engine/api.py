"""The engine's front door: what the server may import, together with engine.text."""

from engine.client import (
    EngineClient,
    EngineStatus,
    OnStep,
    ThreadedEngine,
    load_engine,
    write_datastore,
)
from engine.config import METHODS, EngineConfig, ModelConfig, ModelSource, SpeculationConfig
from engine.errors import ConfigError, EngineDeadError, ModelError, RequestError, TreelineError
from engine.memory import spare_the_collector
from engine.types import (
    PLAIN_TEXT,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    FinishReason,
    RequestTimes,
    SamplingParams,
    SpecStats,
    SpeculationPlan,
    StepOutputs,
    TextRules,
    TokenLogprob,
)

__all__ = [
    "METHODS",
    "PLAIN_TEXT",
    "ConfigError",
    "EngineClient",
    "EngineConfig",
    "EngineDeadError",
    "EngineInfo",
    "EngineOutput",
    "EngineRequest",
    "EngineStatus",
    "FinishReason",
    "ModelConfig",
    "ModelError",
    "ModelSource",
    "OnStep",
    "RequestError",
    "RequestTimes",
    "SamplingParams",
    "SpecStats",
    "SpeculationConfig",
    "SpeculationPlan",
    "StepOutputs",
    "TextRules",
    "ThreadedEngine",
    "TokenLogprob",
    "TreelineError",
    "load_engine",
    "spare_the_collector",
    "write_datastore",
]
