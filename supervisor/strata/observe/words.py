"""Numbers and foreign text in words for people."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path

from strata.config import Config
from strata.engines.modes import bytes_text

LINE_WIDTH = 120


def progress(done: int, total: int, unit: str) -> str:
    """ "42 %, 1.2 GiB of 2.9 GiB"; without a total what is done."""
    in_bytes = unit == "bytes"
    amount = bytes_text(done) if in_bytes else f"{done} {unit}"
    if not total:
        return amount
    share = f"{100 * done // total} %"
    return f"{share}, {amount} of {bytes_text(total)}" if in_bytes else share


def counted(count: int, word: str, ending: str = "s") -> str:
    """ "1 start", "2 starts"."""
    return f"{count} {word}{'' if count == 1 else ending}"


def duration(seconds: float) -> str:
    """ "3d02h", "41m10s", "12 s"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def age(seconds: float) -> str:
    """A duration whose parts of a second matter: "0.42 s", "41m10s"."""
    return f"{seconds:.2f} s" if seconds < 10 else duration(seconds)


def printable(text: str) -> str:
    """One line that a terminal shows as it is: no control characters, no line breaks."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def shortened(text: str, limit: int) -> str:
    """The beginning of a text, to the last word within `limit` characters, and how much is left
    out."""
    if len(text) <= limit:
        return text
    kept = text[:limit].rpartition(" ")[0] or text[:limit]
    return f"{kept} … ({len(text) - len(kept)} characters more)"


def wrapped(head: str, text: str) -> list[str]:
    """Lines of LINE_WIDTH: `head`, the text, and its rest below it, indented by `head`."""
    return textwrap.wrap(
        head + text,
        LINE_WIDTH,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def command_line(words: str, run_dir: Path | None) -> str:
    """ "strata-supervisor status --why --run-dir /srv/strata", to be copied as it is: the run
    directory is named where it is not the one that the command would take by itself (None)."""
    is_default = run_dir in (None, Path(Config().run_dir).expanduser().absolute())
    where = "" if is_default else f" --run-dir {shlex.quote(str(run_dir))}"
    return f"strata-supervisor {words}{where}"
