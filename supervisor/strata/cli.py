"""The command line: flags to settings, command to function, errors to one sentence and a status.

    strata-supervisor serve MODEL | status | reload | drain | quarantine | crashes | beacon
        | plan MODEL | capabilities | config | version

Flags come from the configuration's schema; docs/operations.md lists the exit statuses. This is
the one place that joins `text` and `api` with the rest.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from strata import cli_records, config_source
from strata.cli_flag_hints import flag_hint
from strata.config_source import Settings, Value, fields
from strata.errors import (
    ConfigError,
    ModelDataError,
    ModelMissingError,
    ModelReadError,
    RefusedError,
    StrataError,
)
from strata.served_values import MODES, served_texts

if TYPE_CHECKING:
    from aiohttp import web

    from strata.config import Config
    from strata.serving.service import EngineService
    from strata.text.model import TextModel

INTERRUPTED = 130
PLAN_GROUPS = ("model and engine", "modes", "operations")
ALL_TABLES = "all"
STATUS_WITHOUT = ("log_format", "log_level", "quarantine_trial_s", "exit_on_hold")


class _Parser(argparse.ArgumentParser):
    """Errors are ConfigErrors, so that they look like those of strata.toml."""

    def error(self, message: str) -> NoReturn:
        # argparse writes "argument -a/--all: problem".
        if found := re.fullmatch(r"argument ([^\s/:]+)\S*: (.+)", message):
            flag, problem = found.groups()
            if problem == "expected one argument":
                problem = "needs a value"
            elif problem.startswith("ignored explicit argument"):
                problem = "takes no value"
            message = f"{flag} {problem}"
        raise ConfigError(f"{message} (see {self.prog} --help)")

    def format_help(self) -> str:
        """With what the engine's kernels serve now: asked here, not when flags are read."""
        served = {a.dest: a for a in self._actions if a.dest.removeprefix("setting_") in MODES}
        if served:
            for mode, text in served_texts(config_source.load({}, None).config).items():
                action = served["setting_" + mode]
                action.help = f"{action.help}; {text}"
        return super().format_help()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    _open_closed_streams()
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # here, where a broken pipe is handled
        return status
    except RefusedError as error:
        print(f"strata-supervisor: {error}:", file=sys.stderr)
        for line in error.lines:
            print(f"  {line}", file=sys.stderr)
        return error.exit_code
    except StrataError as error:
        print(f"strata-supervisor: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered goes nowhere, or the interpreter's exit would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _open_closed_streams() -> None:
    """Opens what `>&-` has closed, so that no pipe of the engine becomes standard output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _run(argv: Sequence[str]) -> int:
    parser, commands = _build_parser()
    _check_command(argv, commands)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        raise ConfigError(_unknown(unknown[0], commands[args.command]))
    if args.version:
        args.command = "version"
    match args.command:
        case "serve":
            from strata.cli_serve import serve  # noqa: PLC0415  heavy, and only this one needs it
            from strata.model_source import find_model  # noqa: PLC0415

            settings = _settings(args)
            check_header(find_model(settings.config))
            return serve(settings, build_http, lambda: _settings(args))
        case "status":
            from strata.cli_status import show_status  # noqa: PLC0415

            settings = _settings(args)
            return show_status(settings, as_json=args.json, watch=args.watch, why=args.why)
        case "reload":
            from strata.cli_reload import reload  # noqa: PLC0415

            return reload(
                _settings(args),
                args.new_model,
                args.new_engine,
                wait=args.wait,
                force=args.force,
                as_json=args.json,
            )
        case "drain":
            from strata.cli_drain import drain  # noqa: PLC0415

            return drain(_settings(args), wait=args.wait)
        case "quarantine":
            return cli_records.run_quarantine(args, _settings(args))
        case "crashes":
            return cli_records.run_crashes(args, _settings(args))
        case "beacon":
            return cli_records.run_beacon(args, _settings(args))
        case "plan":
            from strata.cli_plan import show_plan  # noqa: PLC0415

            return show_plan(_settings(args), as_json=args.json, assume=args.assume)
        case "capabilities":
            from strata.cli_capabilities import show_capabilities  # noqa: PLC0415

            backend = None if args.backend == ALL_TABLES else args.backend
            return show_capabilities(_settings(args), backend, as_json=args.json)
        case "config":
            return _show_config(_settings(args), explain=args.explain)
        case "version":
            from strata.observe.status_source import version  # noqa: PLC0415

            print(f"strata-supervisor {version()}")
            return 0
        case _:
            parser.print_help()
            return ConfigError.exit_code


async def build_http(
    service: EngineService,
    config: Config,
    name: str,
    model: Path,
    routes: Sequence[web.RouteDef],
) -> web.Application:
    """The HTTP application; reads the model's text part in a thread. Raises ModelDataError."""
    from strata.api.app import ApiLimits, build_app  # noqa: PLC0415
    from strata.api.operations import OPEN_PATHS  # noqa: PLC0415
    from strata.api.text_workers import read_text  # noqa: PLC0415
    from strata.engines.model_files import base_name  # noqa: PLC0415

    text = await read_text(lambda: load_text(model))
    return build_app(
        service,
        name,
        text,
        limits=ApiLimits(body_bytes=config.body_bytes_max),
        api_keys=config.api_keys,
        model_aliases=("default", model.stem, base_name(model), model.name, str(model)),
        extra_routes=routes,
        open_paths=OPEN_PATHS,
    )


def check_header(path: Path) -> None:
    """Walks the key-value pairs before anything is started, so that a file cut off within them is
    one error and not one of the engine and one of the tokeniser; and refuses files that go with a
    model and are none, which have no text part. Raises ModelDataError, ModelMissingError,
    ModelReadError."""
    from strata.engines.model_files import model_files  # noqa: PLC0415
    from strata.text.file_role import KEYS, is_split, problem_of  # noqa: PLC0415
    from strata.text.gguf_metadata import MetadataError, read_metadata  # noqa: PLC0415

    try:
        metadata = read_metadata(path, lambda key: key.endswith(KEYS))
        if problem := problem_of(path, metadata):
            raise ModelDataError(f"{path}: {problem}")
        for part in model_files(path)[1:]:
            if is_split(metadata) and not part.exists():
                raise ModelMissingError(f"{part}, a part of the split model {path}, does not exist")
    except MetadataError as error:
        raise ModelDataError(_about(path, error)) from None
    except OSError as error:
        raise ModelReadError(f"the model file {path} cannot be read: {error.strerror}") from None


def load_text(path: Path) -> TextModel:
    """Tokeniser and chat template of a model file. Raises ModelDataError."""
    from strata.text.errors import TokenizerError  # noqa: PLC0415
    from strata.text.gguf_metadata import MetadataError  # noqa: PLC0415
    from strata.text.model import TextModel  # noqa: PLC0415

    try:
        return TextModel.from_gguf(path)
    except (MetadataError, TokenizerError) as error:
        raise ModelDataError(_about(path, error)) from None


def _about(path: Path, error: Exception) -> str:
    """The error after the whole path, where the text layer names the file alone."""
    return f"{path}: {str(error).removeprefix(path.name + ': ')}"


def _build_parser() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(
        prog="strata-supervisor",
        description="Serves GGUF language models as a service that stays up.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=None)
    parser.add_argument("-V", "--version", action="store_true", help="same as the command version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    groups = tuple(dict.fromkeys(f.group for f in fields().values()))
    commands: dict[str, _Parser] = {}

    def command(
        name: str, text: str, shown: Iterable[str], without: Container[str] = ()
    ) -> _Parser:
        found = subparsers.add_parser(name, help=text, description=text, allow_abbrev=False)
        commands[name] = found
        if name != "version":
            found.add_argument(
                "--config", metavar="FILE", help="TOML file; default: ./strata.toml if it is there"
            )
        for group in shown:
            _add_flags(found, group, without)
        return found

    def add_model(found: _Parser) -> None:
        found.add_argument(
            "positional_model", metavar="MODEL", nargs="?", help="GGUF file or smollm2"
        )

    add_model(command("serve", "Runs the service until it is told to stop.", groups))
    status = command(
        "status",
        "Shows the service of a run directory.",
        ("operations",),
        without=STATUS_WITHOUT,
    )
    status.add_argument("--json", action="store_true", help="one JSON object")
    status.add_argument("--watch", action="store_true", help="again each second, until Ctrl-C")
    status.add_argument(
        "--why", action="store_true", help="what was decided about the engine, newest last"
    )
    reload = command(
        "reload",
        "Replaces the engine by one of the settings as they are now; streams go on with it.",
        ("operations",),
        without=STATUS_WITHOUT,
    )
    reload.add_argument(
        "--model", dest="new_model", metavar="FILE", default="", help="has to be the same model"
    )
    reload.add_argument(
        "--engine", dest="new_engine", metavar="FILE", default="", help="another executable"
    )
    reload.add_argument("--wait", action="store_true", help="until the new engine serves or fails")
    reload.add_argument(
        "--force", action="store_true", help="also settings that a crash after a reload has left"
    )
    reload.add_argument("--json", action="store_true", help="one JSON object for each answer")
    drain = command(
        "drain",
        "Ends the service of a run directory; what it has accepted finishes first.",
        ("operations",),
        without=STATUS_WITHOUT,
    )
    drain.add_argument("--wait", action="store_true", help="until the service has ended")
    quarantine = command(
        "quarantine",
        "Lists or clears modes that ended the engine and are not offered for that.",
        ("operations",),
        without=("log_format", "log_level", "exit_on_hold"),
    )
    cli_records.add_quarantine(quarantine)
    crashes = command(
        "crashes",
        "Lists, shows or exports what is recorded of engines that crashed.",
        ("operations",),
        without=STATUS_WITHOUT,
    )
    cli_records.add_crashes(crashes)
    beacon = command(
        "beacon",
        "Shows what an engine does, or did when it ended.",
        ("operations",),
        without=STATUS_WITHOUT,
    )
    cli_records.add_beacon(beacon)
    plan = command(
        "plan",
        "Shows what would run, here or on another backend, without loading the model.",
        PLAN_GROUPS,
        without=("log_format", "log_level", "exit_on_hold"),
    )
    add_model(plan)
    plan.add_argument(
        "--assume",
        metavar="FACT=VALUE,...",
        default="",
        help="plan for a machine that is not here: device=NAME, device_memory=24GiB,"
        " host_memory=64GiB, cores=16",
    )
    plan.add_argument("--json", action="store_true", help="one JSON object")
    tables = (*fields()["backend"].choices, ALL_TABLES)
    capabilities = command(
        "capabilities",
        "Shows which operations and types each backend serves.",
        ("model and engine",),
        without=("model", "served_model_name", "backend"),
    )
    capabilities.add_argument(
        "--backend",
        metavar="{" + ",".join(tables) + "}",
        choices=tables,
        default=ALL_TABLES,
        help="show the tables of one backend (default all)",
    )
    capabilities.add_argument("--json", action="store_true", help="one JSON object")
    config = command("config", "Shows the settings in force.", groups)
    config.add_argument("--explain", action="store_true", help="every setting with its meaning")
    command("version", "Shows the version.", ())
    return parser, commands


def _add_flags(parser: argparse.ArgumentParser, group: str, without: Container[str]) -> None:
    section = parser.add_argument_group(group)
    for field in fields().values():
        if field.group != group or field.key in without:
            continue
        text = field.usage.replace("%", "%%")
        dest = "setting_" + field.key
        if field.kind == "bool":
            section.add_argument(
                "--" + field.flag,
                dest=dest,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=text,
            )
        else:
            section.add_argument(
                "--" + field.flag,
                dest=dest,
                action="append" if field.kind == "list" else "store",
                default=argparse.SUPPRESS,
                metavar=field.metavar,
                help=text,
            )


def _settings(args: argparse.Namespace) -> Settings:
    flags: dict[str, Value] = {}
    for key, field in fields().items():
        given = getattr(args, "setting_" + key, None)
        if given is None:
            continue
        source = "--" + field.flag
        if isinstance(given, str):
            flags[key] = config_source.parse(field, given, source)
        else:
            flags[key] = config_source.check(field, given, source)
    model = getattr(args, "positional_model", None)
    if model is not None:
        if flags.get("model", model) != model:
            raise ConfigError(
                f"the model is given twice: {model} as MODEL, {flags['model']} with --model"
            )
        flags["model"] = config_source.parse(fields()["model"], model, "MODEL")
    return config_source.load(flags, Path(args.config) if args.config else None)


def _check_command(argv: Sequence[str], commands: dict[str, _Parser]) -> None:
    """Raises ConfigError for what stands in the command's place and is none."""
    first = argv[0] if argv else "--help"
    if first in commands or first in ("-h", "--help", "-V", "--version"):
        return
    if first.startswith("-"):
        text = f"{first.partition('=')[0]} stands before the command; flags follow it"
    else:
        text = f"unknown command {first}{config_source.close_matches(first, commands)}"
        if text.endswith(first):
            text += f"; there are {', '.join(commands)}"
    raise ConfigError(f"{text} (see strata-supervisor --help)")


def _unknown(word: str, parser: _Parser) -> str:
    hint = f" (see {parser.prog} --help)"
    if not word.startswith("-"):
        return f"unexpected argument {word}{hint}"
    known = {s for action in parser._actions for s in action.option_strings}  # noqa: SLF001
    name = word.partition("=")[0]
    near = flag_hint(name, known, is_reload=parser.prog.endswith(" reload"))
    return f"unknown flag {name}{near}{hint}"


def _show_config(settings: Settings, *, explain: bool) -> int:
    group = ""
    served = served_texts(settings.config) if explain else {}
    for key, field in fields().items():
        if field.group != group:
            group = field.group
            print(f"{'' if key == 'model' else chr(10)}# {group}")
        value = field.shown(getattr(settings.config, key))
        print(f"{key} = {value}  ({settings.sources[key]})")
        if explain:
            default = "none" if field.default in ("", ()) else field.shown(field.default)
            print(f"    {field.help}")
            if key in served:
                print(f"    {served[key]}")
            print(f"    flag --{field.flag}; allowed: {field.allowed}; default: {default}")
    return 0
