"""CAPS of a file as large as models get comes from its header: no weight is read or touched, by
counts of the kernel and not by the clock. What it takes is measured in bench/boot.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from strata_protocol import messages as m

from tests.model.sparse_model import write_sparse_model
from tests.system.engine_driver import Engine

HEADER_BYTES_MAX = 32 << 20  # a table of embeddings alone has 2 GB
CONFIGURATIONS_MAX = 1000  # what is planned does not grow with the file
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


def read_bytes(engine: Engine) -> int:
    """Bytes that the process has read so far, from pipes and files alike."""
    text = Path(f"/proc/{engine.process.pid}/io").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("rchar:"))
    return int(line.split()[1])


def mapped_bytes(engine: Engine) -> int:
    """Resident bytes of the files that the process has mapped."""
    status = Path(f"/proc/{engine.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssFile:"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("hidden", [[], ["*:sequences>1"], ["matmul*:rows>64"]])
def test_caps_of_a_large_file(engine_path: Path, large: Path, hidden: list[str]) -> None:
    with Engine(engine_path, *MACHINE) as engine:
        engine.expect(m.Hello)
        mapped, read = mapped_bytes(engine), read_bytes(engine)
        engine.send(engine.offer(large, hidden, **LARGEST))
        caps = engine.expect(m.Caps)
        assert mapped_bytes(engine) - mapped < HEADER_BYTES_MAX
        assert read_bytes(engine) - read < HEADER_BYTES_MAX
    assert large.stat().st_blocks * 512 < 16 << 20
    assert 1 < len(caps.configurations) < CONFIGURATIONS_MAX
    assert caps.model.file_bytes == large.stat().st_size
    first = caps.configurations[0].plan
    assert {name: getattr(first, name) for name in LARGEST} == LARGEST
    assert (first.mtp, first.batch_mtp) == ("model", True)
    assert any(not configuration.missing for configuration in caps.configurations)
