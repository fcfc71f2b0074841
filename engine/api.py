"""The engine's front door: what the server may import, together with engine.text."""

from engine.client import EngineClient, EngineStatus, ThreadedEngine, load_engine
from engine.config import EngineConfig, ModelConfig, ModelSource, SpeculationConfig
from engine.errors import ConfigError, EngineDeadError, ModelError, RequestError, TreelineError
from engine.types import (
    EngineInfo,
    EngineOutput,
    EngineRequest,
    FinishReason,
    RequestTimes,
    SamplingParams,
    SpeculationPlan,
    SpecStats,
    StepOutputs,
    TokenLogprob,
)

__all__ = [
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
    "RequestError",
    "RequestTimes",
    "SamplingParams",
    "SpecStats",
    "SpeculationConfig",
    "SpeculationPlan",
    "StepOutputs",
    "ThreadedEngine",
    "TokenLogprob",
    "TreelineError",
    "load_engine",
]
