"""The process that starts replicas, waits for a signal, drains them and leaves nothing behind.

It holds no model and serves nothing itself. The first signal takes the application away, so that
new requests get 503 and running ones may take `server.drain_seconds`; a second one ends at once.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType

import ray
from ray import serve

from engine.errors import ConfigError, TreelineError
from server.replicas.front import environment
from server.replicas.options import ReplicaOptions
from server.replicas.replica import NAME, Replica
from server.serving import bind, check_files
from server.settings import ServerSettings, Settings

STOP_SECONDS = 30.0  # for a replica to end once it has drained
OBJECT_STORE_BYTES = 128 * 1024 * 1024  # of a cluster of our own: only bodies pass through it


class ReplicaError(TreelineError):
    """The replicas cannot be started. The message is for the operator."""


def serve_replicas(settings: Settings, options: ReplicaOptions, address: str | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns 0. `address`: of a running Ray cluster; None: a
    cluster of our own, on this machine, which ends with this process.

    Raises ConfigError for a setting that replicas cannot honour, PortError if the address cannot be
    had, ReplicaError if no replica starts.
    """
    ours = settings.server
    check_files(ours)
    if ours.port == 0:
        raise ConfigError("server.port: replicas need a port that is known, not 0")
    if address is None:
        bind(ours.host, ours.port).close()  # found out at once, and said in one line
    asked_to_end = threading.Event()
    try:
        _connect(ours, address)
        _deploy(settings, options)
        _on_signals(asked_to_end)
        print(_ready(settings, options), flush=True)
        asked_to_end.wait()
        _drain(ours.drain_seconds)
        serve.shutdown()
    finally:
        ray.shutdown()
    return 0


def _connect(settings: ServerSettings, address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ours = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        ray.init(
            address=address or "local",
            runtime_env={"env_vars": environment(settings)},
            **({} if address else ours),
        )
    except Exception as error:  # which Ray raises as such where a node does not start
        raise ReplicaError(f"no Ray cluster: {str(error).splitlines()[0]}") from error
    if serve.status().proxies:
        raise ReplicaError(
            "Serve runs on this cluster already, and its proxies would keep their own address: "
            "end it first with `serve shutdown`"
        )


def _deploy(settings: Settings, options: ReplicaOptions) -> None:
    ours = settings.server
    deployment = serve.deployment(serve.ingress()(Replica)).options(
        name=NAME, **options.deployment(settings, ray.cluster_resources())
    )
    try:
        serve.start(
            proxy_location="EveryNode",
            http_options={
                "host": ours.host,
                "port": ours.port,
                "ssl_certfile": ours.ssl_certfile and str(ours.ssl_certfile),
                "ssl_keyfile": ours.ssl_keyfile and str(ours.ssl_keyfile),
            },
            logging_config={"enable_access_log": False, "log_level": "WARNING"},
        )
        serve.run(deployment.bind(settings), name=NAME, route_prefix="/")
    except (RuntimeError, TimeoutError, ray.exceptions.RayError) as error:
        reason = _reason(str(error))
        serve.shutdown()
        raise ReplicaError(f"the replicas did not start: {reason}") from error


def _reason(message: str) -> str:
    """The one line that tells: above it are traces of other processes."""
    application = serve.status().applications.get(NAME)
    told: list[str] = (
        [one.message for one in application.deployments.values()] if application else []
    )
    lines = [line for text in (message, *told) for line in text.splitlines() if line.strip()]
    return lines[-1].strip()


def _drain(seconds: float) -> None:
    """Take the application away; return when its requests have ended, as they must in time."""
    serve.delete(NAME, _blocking=False)
    deadline = time.monotonic() + seconds + STOP_SECONDS
    while NAME in serve.status().applications and time.monotonic() < deadline:
        time.sleep(0.2)


def _on_signals(asked_to_end: threading.Event) -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        if asked_to_end.is_set():
            sys.exit(1)  # in the main thread, which then ends the cluster
        asked_to_end.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _ready(settings: Settings, options: ReplicaOptions) -> str:
    ours = settings.server
    scheme = "https" if ours.ssl_certfile else "http"
    count = (
        f"{options.minimum} to {options.maximum}"
        if options.maximum > options.minimum
        else (str(options.minimum))
    )
    return (
        f"Treeline serves {settings.engine.model.name} at {scheme}://{ours.host}:{ours.port} "
        f"with {count} replicas"
    )
