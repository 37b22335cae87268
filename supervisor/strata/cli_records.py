"""Arguments of the commands on the records of a run directory: quarantine, crashes, beacon.

What they do is in a module of each, which is imported when it is asked for.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from strata.config_source import Settings
from strata.errors import ConfigError


def add_quarantine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        metavar="ACTION",
        choices=("list", "clear"),
        nargs="?",
        default="list",
        help="list (the default) or clear",
    )
    parser.add_argument("record", metavar="ID", nargs="?", help="clear: the record to remove")
    parser.add_argument("--all", action="store_true", help="clear: all records")
    parser.add_argument("--json", action="store_true", help="one JSON list")


def run_quarantine(args: argparse.Namespace, settings: Settings) -> int:
    from strata.cli_quarantine import clear_quarantine, list_quarantine  # noqa: PLC0415

    if args.action == "clear":
        if (args.record is None) is not args.all:
            raise ConfigError("quarantine clear takes the ID of a record, or --all")
        return clear_quarantine(settings, args.record, as_json=args.json)
    if args.record is not None or args.all:
        raise ConfigError("quarantine list takes neither ID nor --all")
    return list_quarantine(settings, as_json=args.json)


def add_crashes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        metavar="ACTION",
        choices=("list", "show", "export"),
        nargs="?",
        default="list",
        help="list (the default), show or export",
    )
    parser.add_argument(
        "bundle",
        metavar="ID",
        nargs="?",
        help="show, export: an id, the beginning of one, or a signature (default: the newest)",
    )
    parser.add_argument("--out", metavar="FILE", help="export: the tar.gz to write")
    parser.add_argument("--json", action="store_true", help="JSON instead of sentences")


def run_crashes(args: argparse.Namespace, settings: Settings) -> int:
    from strata.cli_crashes import export_crash, list_crashes, show_crash  # noqa: PLC0415

    if args.out is not None and args.action != "export":
        raise ConfigError(f"crashes {args.action} takes no --out")
    if args.action == "show":
        return show_crash(settings, args.bundle, as_json=args.json)
    if args.action == "export":
        out = Path(args.out) if args.out else None
        return export_crash(settings, args.bundle, out, as_json=args.json)
    if args.bundle is not None:
        raise ConfigError("crashes list takes no ID")
    return list_crashes(settings, as_json=args.json)


def add_beacon(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--epoch", metavar="N", type=int, help="number of the engine start (default: the newest)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--watch", action="store_true", help="again each second, until Ctrl-C")


def run_beacon(args: argparse.Namespace, settings: Settings) -> int:
    from strata.cli_beacon import show_beacon  # noqa: PLC0415

    return show_beacon(settings, args.epoch, as_json=args.json, watch=args.watch)
