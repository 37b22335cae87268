"""CAPS of a file as large as models get comes from its header: in time, and without its weights."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from strata_protocol import messages as m

from tests.model.sparse_model import write_sparse_model
from tests.system.engine_driver import Engine

LIMIT_S = 2.0
LARGEST: dict[str, object] = {"batch": 256, "prefill": 8192, "kv": "q4_0", "spec": 7}
MACHINE = ("--as", "cpu", "--assume", "host_memory=512GiB,cores=8")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    try:
        write_sparse_model(path, kinds=("f16", "q8_0"))
    except OSError as error:
        pytest.skip(f"no sparse file of this size here: {error}")
    size = path.stat()
    assert size.st_size > 100e9
    assert size.st_blocks * 512 < 16 << 20, "the file is not sparse"
    return path


def mapped_bytes(engine: Engine) -> int:
    """Resident bytes of the files that the process has mapped."""
    status = Path(f"/proc/{engine.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssFile:"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("hidden", [[], ["*:sequences>1"], ["matmul*:rows>64"]])
def test_caps_of_a_large_file(engine_path: Path, large: Path, hidden: list[str]) -> None:
    with Engine(engine_path, *MACHINE) as engine:
        engine.expect(m.Hello)
        before = mapped_bytes(engine)
        begin = time.monotonic()
        engine.send(engine.offer(large, hidden, **LARGEST))
        caps = engine.expect(m.Caps)
        took = time.monotonic() - begin
        grown = mapped_bytes(engine) - before
    assert took < LIMIT_S, f"{took:.2f} s"
    # The header, and not a page of weights: a table of embeddings alone has 2 GB.
    assert grown < 32 << 20, f"{grown} bytes"
    assert caps.model.file_bytes == large.stat().st_size
    first = caps.configurations[0].plan
    assert {name: getattr(first, name) for name in LARGEST} == LARGEST
    assert (first.mtp, first.batch_mtp) == ("model", True)
    assert any(not configuration.missing for configuration in caps.configurations)
