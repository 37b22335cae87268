"""Writes protocol/golden: frames that both sides must read, and write back byte for byte.

    python protocol/schema/golden.py          writes the files
    python protocol/schema/golden.py --check  exits 1 and names the files that are stale

Each case is NAME.bin (bytes of the stream) and NAME.json (what it is). The name tells a reader
without a JSON parser what to expect, DIRECTION-EXPECTATION-CASE:
    to_engine-ok-cancel                 decodes; encoding it again yields the same bytes
    to_engine-as-cancel-extra_value     decodes to the message of to_engine-ok-cancel
    to_engine-ignored-new_message       is skipped without a fault
    to_engine-bad-proto.crc-payload     is a fault with that code
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

PROTOCOL = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROTOCOL))

from schema.golden_bad import bad_cases  # noqa: E402
from schema.golden_cases import Case, good_messages, lenient_cases  # noqa: E402
from strata_protocol.codec import ToEngineMessage  # noqa: E402
from strata_protocol.framing import encode_frame  # noqa: E402

GOLDEN = PROTOCOL / "golden"


@dataclass(frozen=True)
class Golden:
    name: str
    data: bytes
    facts: dict[str, object]


def _direction(message: msgspec.Struct) -> str:
    return "to_engine" if isinstance(message, ToEngineMessage) else "to_supervisor"


def golden() -> list[Golden]:
    """Every case, good ones first."""
    out = []
    for case, message in good_messages().items():
        facts: dict[str, object] = {"expect": "ok", "message": msgspec.to_builtins(message)}
        tag = str(message.__struct_config__.tag)
        if message.__struct_config__.array_like:
            names = list(message.__struct_fields__)
            facts["message"] = {n: msgspec.to_builtins(getattr(message, n)) for n in names}
        facts["tag"] = tag
        name = f"{_direction(message)}-ok-{case}"
        out.append(Golden(name, encode_frame(message), facts))
    cases: list[Case] = lenient_cases() + bad_cases()
    out += [Golden(c.name, c.data, {"expect": c.expect, "why": c.why}) for c in cases]
    names = [g.name for g in out]
    if len(set(names)) != len(names):
        raise ValueError("two golden cases have one name")
    return out


def files() -> dict[Path, bytes]:
    """Every file of protocol/golden with the bytes it must have."""
    out: dict[Path, bytes] = {}
    for g in golden():
        out[GOLDEN / f"{g.name}.bin"] = g.data
        text = json.dumps(g.facts | {"bytes": len(g.data)}, indent=2, ensure_ascii=True)
        out[GOLDEN / f"{g.name}.json"] = (text + "\n").encode()
    return out


def stale() -> list[Path]:
    """Files that differ from what the schema yields, are missing, or belong to no case."""
    want = files()
    have = {p for p in GOLDEN.iterdir() if p.suffix in {".bin", ".json"}}
    changed = [p for p, data in want.items() if p not in have or p.read_bytes() != data]
    return changed + sorted(have - set(want))


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the golden frames")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    old = stale()
    if parser.parse_args().check:
        for path in old:
            sys.stderr.write(f"{path.relative_to(PROTOCOL.parent)} is stale; run golden.py\n")
        return 1 if old else 0
    want = files()
    for path in old:
        if path in want:
            path.write_bytes(want[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
