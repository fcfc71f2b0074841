"""The command line of scripts/serve_ray.py. What a user can mend is one line, never a traceback."""

import argparse
import os
import sys
from collections.abc import Sequence

from engine.errors import ConfigError, ModelError, TreelineError
from server.config_loader import DEFAULT_CONFIG, ENV_CONFIG, Override, load_settings
from server.replicas.options import ReplicaOptions
from server.settings import Settings

FLAGS = {"--host": "server.host", "--port": "server.port"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve with replicas. Exit codes as those of `treeline serve`."""
    try:
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
    except TreelineError as error:
        print(f"treeline: {error}", file=sys.stderr)
        is_mistake = isinstance(error, ConfigError) and not isinstance(error, ModelError)
        return 2 if is_mistake else 1
    except KeyboardInterrupt:
        return 130


def settings_of(given: argparse.Namespace) -> Settings:
    """The resolved configuration: flags, environment, file, defaults. Raises ConfigError."""
    flags = [
        Override(flag, path, getattr(given, flag.removeprefix("--")))
        for flag, path in FLAGS.items()
        if getattr(given, flag.removeprefix("--")) is not None
    ]
    for assignment in given.set:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set: expected KEY=VALUE, got {assignment}")
        flags.append(Override("--set", path, text))
    return load_settings(
        given.config or os.environ.get(ENV_CONFIG) or DEFAULT_CONFIG, flags, os.environ
    )


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
