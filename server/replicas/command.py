"""The command line of scripts/serve_ray.py. What a user can mend is one line, never a traceback."""

import argparse
from collections.abc import Sequence

from engine.errors import TreelineError
from server.cli import exit_code, settings_of
from server.config_loader import DEFAULT_CONFIG
from server.replicas.options import ReplicaOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve with replicas. Exit codes as those of `treeline serve`."""

    def run() -> int:
        given = parser().parse_args(arguments)
        options = ReplicaOptions.parse(given.replicas, given.cpus, given.gpus)
        settings = settings_of(given)
        try:
            from server.replicas.serving import serve_replicas
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise TreelineError("replicas need Ray: pip install 'treeline[ray]'") from error
        return serve_replicas(settings, options, given.address)

    return exit_code(run)


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = argparse.ArgumentParser(
        prog="serve_ray.py",
        description="Serve a model with replicas under Ray Serve, one engine each.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--config", metavar="FILE", help=f"default: {DEFAULT_CONFIG}")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="any key of it; repeatable")
    add("--host", help="server.host")
    add("--port", help="server.port")
    add("--replicas", metavar="MIN[:MAX]", default="1", help="scales with the queue; default: 1")
    add("--cpus", type=float, help="of each replica; default: 1 beside a GPU, else a fair share")
    add("--gpus", type=float, help="of each replica; default: 1 if there are any, else 0")
    add("--address", help="a running Ray cluster, or auto; default: one of its own, here")
    return made
