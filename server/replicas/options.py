"""How many replicas there are, what each may use, and what Ray Serve is told of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError
from server.settings import Settings

ROUTER = "server.replicas.router.PrefixRouter"
SPARE_REQUESTS = 16  # probes and scrapes, beside what the queue holds
HEALTH_SECONDS = 2.0  # between two questions whether a replica is ready
MAX_STARTS = 3  # of a replica that fails to start, before the deployment is given up
IDLE_SECONDS = 60.0  # of low load before replicas are taken away: loading a model takes time


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """From `minimum` to `maximum` replicas, and `cpus` and `gpus` of each; None: by the cluster."""

    minimum: int = 1
    maximum: int = 1
    cpus: float | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for a range that holds nothing or a share that is none."""
        if not 1 <= self.minimum <= self.maximum:
            raise ConfigError(
                f"--replicas: expected 1 <= MIN <= MAX, got {self.minimum}:{self.maximum}"
            )
        for flag, share in (("--cpus", self.cpus), ("--gpus", self.gpus)):
            if share is not None and share < 0:
                raise ConfigError(f"{flag}: must be at least 0, got {share:g}")

    @classmethod
    def parse(
        cls, replicas: str, cpus: float | None = None, gpus: float | None = None
    ) -> "ReplicaOptions":
        """`replicas` is MIN or MIN:MAX. Raises ConfigError."""
        low, colon, high = replicas.partition(":")
        try:
            return cls(int(low), int(high if colon else low), cpus, gpus)
        except ValueError as error:
            raise ConfigError(f"--replicas: expected MIN or MIN:MAX, got {replicas}") from error

    def deployment(self, settings: Settings, cluster: Mapping[str, float]) -> dict[str, Any]:
        """The options of Ray's deployment. `cluster`: its resources, such as {"CPU": 8.0}."""
        max_batch = settings.engine.max_batch
        options: dict[str, Any] = {
            "ray_actor_options": self._share(settings, cluster),
            # Above what a replica's own queue takes: it refuses the rest itself, in OpenAI's shape.
            "max_ongoing_requests": max_batch
            + settings.server.max_queued_requests
            + SPARE_REQUESTS,
            "max_constructor_retry_count": MAX_STARTS,
            "health_check_period_s": HEALTH_SECONDS,
            "graceful_shutdown_wait_loop_s": 0.5,
            "graceful_shutdown_timeout_s": settings.server.drain_seconds,
            "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
            "request_router_config": {
                "request_router_class": ROUTER,
                "request_router_kwargs": {"slack": max_batch},
            },
        }
        if self.minimum == self.maximum:
            return options | {"num_replicas": self.minimum}
        scaling = {
            "min_replicas": self.minimum,
            "max_replicas": self.maximum,
            "target_ongoing_requests": max_batch,  # more than that wait for a KV slot
            "upscale_delay_s": 5.0,
            "downscale_delay_s": IDLE_SECONDS,
        }
        return options | {"autoscaling_config": scaling}

    def _share(self, settings: Settings, cluster: Mapping[str, float]) -> dict[str, float]:
        device = settings.engine.model.device
        has_gpu = device == "cuda" or (device == "auto" and cluster.get("GPU", 0.0) > 0)
        gpus = self.gpus if self.gpus is not None else float(has_gpu)
        # Ray lets torch use as many threads as the replica has cores.
        share = 1.0 if gpus else max(1.0, cluster.get("CPU", 1.0) // self.maximum)
        return {"num_cpus": self.cpus if self.cpus is not None else share, "num_gpus": gpus}
