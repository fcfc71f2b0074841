"""The `treeline` command: serve, bench, config show.

Exit codes: 0 a clean end, 1 it cannot start or the engine died, 2 a wrong command line or
configuration, 130 interrupted while starting. What a user can mend is one line, never a traceback.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from engine import __version__
from engine.errors import ConfigError, ModelError, TreelineError
from server.bench_options import add_bench_options
from server.config_loader import DEFAULT_CONFIG, ENV_CONFIG, Override, load_settings
from server.settings import SCHEMA, Settings

FLAGS = {
    "--host": "server.host",
    "--port": "server.port",
    "--api-key": "server.api_key",
    "--method": "speculation.method",
    "--width": "speculation.tree.width",
    "--depth": "speculation.tree.depth",
    "--budget": "speculation.tree.budget",
    "--dtype": "model.dtype",
    "--device": "model.device",
    "--max-model-len": "model.max_model_len",
    "--max-batch": "engine.max_batch",
}

EPILOG = """Every key of the configuration can be set four ways; the first of these wins:
  a flag           --port 9000, or for any key: --set server.port=9000
  the environment  TREELINE_SERVER_PORT=9000
  the YAML file    --config FILE, or the name of one of Treeline's own such as qwen3-8b
  the default      `treeline config show` prints every key with its value and its origin
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""

    def run() -> int:
        options = _parser().parse_args(arguments)
        code: int = options.run(options)
        return code

    return exit_code(run)


def exit_code(command: Callable[[], int]) -> int:
    """Run `command`; what a user can mend becomes one line on stderr and an exit code."""
    try:
        return command()
    except TreelineError as error:
        print(f"treeline: {error}", file=sys.stderr)
        is_mistake = isinstance(error, ConfigError) and not isinstance(error, ModelError)
        return 2 if is_mistake else 1
    except KeyboardInterrupt:
        return 130


def _serve(options: argparse.Namespace) -> int:
    from server.serving import serve

    return serve(settings_of(options))


def _show(options: argparse.Namespace) -> int:
    sys.stdout.write(settings_of(options).render())
    return 0


def _bench(options: argparse.Namespace) -> int:
    options.config = settings_of(options).engine
    from engine.bench import run

    code: int = run(options)
    return code


def _build_datastore(options: argparse.Namespace) -> int:
    config = settings_of(options).engine
    from engine.api import write_datastore

    count = write_datastore(config, options.files, options.out)
    print(
        f"{options.out}: {count} tokens; serve with --set speculation.rest.datastore={options.out}"
    )
    return 0


def settings_of(options: argparse.Namespace) -> Settings:
    """The resolved configuration: flags, environment, file, defaults. Raises ConfigError."""
    given = vars(options)
    flags = [
        Override(flag, path, given[_name(flag)])
        for flag, path in FLAGS.items()
        if given.get(_name(flag)) is not None
    ]
    for assignment in given.get("set", ()):
        path, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set: expected KEY=VALUE, got {assignment}")
        flags.append(Override("--set", path, text))
    config = options.config or os.environ.get(ENV_CONFIG) or DEFAULT_CONFIG
    return load_settings(config, flags, os.environ)


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors that know the nearest flag."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line."""
        word = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
        near = difflib.get_close_matches(word, FLAGS, n=1) if word.startswith("--") else []
        advice = f"did you mean {near[0]}?" if near else f"see {self.prog} --help"
        self.exit(2, f"treeline: {message}; {advice}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="treeline",
        description="OpenAI-compatible inference server that decodes with token trees.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"treeline {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve = _command(commands, "serve", "serve a model over HTTP", FLAGS)
    serve.set_defaults(run=_serve)
    config = commands.add_parser("config", help="look at the configuration")
    actions = config.add_subparsers(metavar="ACTION", required=True)
    show = _command(actions, "show", "print the resolved configuration with origins", FLAGS)
    show.set_defaults(run=_show)
    bench = _command(commands, "bench", "measure methods against `off`", ("--dtype", "--device"))
    bench.set_defaults(run=_bench)
    add_bench_options(bench)
    datastore = commands.add_parser("datastore", help="texts for the method `rest` to copy from")
    writers = datastore.add_subparsers(metavar="ACTION", required=True)
    build = _command(writers, "build", "write a datastore of text files", ())
    build.add_argument("files", nargs="+", type=Path, metavar="FILE", help="UTF-8 text")
    build.add_argument("--out", type=Path, required=True, metavar="FILE", help="written here")
    build.set_defaults(run=_build_datastore)
    return parser


def _command(
    commands: "argparse._SubParsersAction[_Parser]", name: str, summary: str, flags: Iterable[str]
) -> argparse.ArgumentParser:
    """A command that reads the configuration, with these of its flags."""
    command = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--config", metavar="FILE", help=f"default: {DEFAULT_CONFIG}")
    for flag in flags:
        path = FLAGS[flag]
        command.add_argument(flag, metavar="VALUE", help=f"{path}: {SCHEMA.describe(path)}")
    command.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="any key; may be repeated"
    )
    return command


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


if __name__ == "__main__":
    sys.exit(main())
