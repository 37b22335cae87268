"""A table of n-grams as large as models get: it is planned apart from memory, and the engine serves
without reading more of it than tokens name."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import numpy as np
import pytest
from strata_protocol import messages as m

from tests.model.sparse_model import FLASH_NEXT, FLASH_NEXT_KINDS, write_sparse_model
from tests.system.engine_driver import Engine, submit
from tests.system.test_large_file import MACHINE, mapped_bytes
from tools.synth_model import Shape

TABLE_ROW_BYTES = 160 // 32 * 18
SMALL = Shape(
    architecture="qwen4exp",
    layers=4,
    head_dim=32,
    rope_dims=16,
    table_size=20_000_003,  # 10 GB of rows of f32, all of them zeros
)


def written(path: Path, **options: object) -> Path:
    try:
        return write_sparse_model(path, **options)  # type: ignore[arg-type]
    except OSError as error:
        pytest.skip(f"no sparse file of this size here: {error}")


@pytest.fixture(scope="module")
def flash_next(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "m.gguf"
    return written(path, shape=FLASH_NEXT, kind_of=FLASH_NEXT_KINDS)


def test_a_full_size_model_is_planned_by_part(engine_path: Path, flash_next: Path) -> None:
    with Engine(engine_path, *MACHINE) as engine:
        engine.expect(m.Hello)
        engine.send(engine.offer(flash_next, batch=4))
        begin = time.monotonic()
        caps = engine.expect(m.Caps)
        assert time.monotonic() - begin < 2
    wanted = caps.configurations[0]
    parts = {part.name: part for part in wanted.memory}
    rows = sum(FLASH_NEXT.table_sizes)
    table = parts["weights.on_demand"]
    assert (table.bytes, table.on_demand_bytes) == (0, rows * TABLE_ROW_BYTES)
    assert str(rows * TABLE_ROW_BYTES) in table.text
    weights = sum(part.bytes for name, part in parts.items() if ".weights." in f".{name}")
    in_file = flash_next.stat().st_size - table.on_demand_bytes
    assert weights == pytest.approx(in_file, rel=0.05)  # layouts of kernels differ a little
    # Floats of a layer of a sequence's state, 36 of them; the ring of the table's convolution and
    # that of the last tokens.
    spec = wanted.plan.spec
    delta = 48 * 128 * 128 + (3 + spec) * 10240 + 2 * spec * (64 * 128 + 48)
    floats = 36 * delta + (9 + spec) * 10240 + 16
    assert parts["state"].bytes == pytest.approx(wanted.plan.batch * floats * 4, rel=1e-3)
    tokens = wanted.plan.kv_tokens
    assert parts["kv"].bytes == tokens * 12 * 2 * 2 * 256 * 2
    assert parts["kv.index"].bytes == tokens * 12 * 128 * 2 * 5 // 4
    assert wanted.plan.max_context == FLASH_NEXT.context


@pytest.mark.parametrize("options", [{}, {"mmap": False}, {"mlock": True}], ids=str)
def test_the_table_is_not_read(
    engine_path: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    path = written(tmp_path / "m.gguf", shape=SMALL, kinds=("f32",))
    assert path.stat().st_size > 10e9
    ids = np.random.default_rng(1).integers(0, SMALL.vocab, size=300).tolist()
    with Engine(engine_path) as engine:
        ready = engine.boot(path, batch=2, max_context=512, **options)
        parts = {part.name: part for part in ready.memory}
        assert parts["weights.on_demand"].on_demand_bytes > 10e9
        assert sum(part.bytes for part in ready.memory) < 1e9
        mapped = mapped_bytes(engine)
        assert mapped < 1e9
        engine.send(submit(1, ids, max_tokens=20, ignore_eos=True))
        assert engine.done(1).reason == "length"
        # A page for each row that a token names, and what the kernel maps around them.
        pages = (len(ids) + 20) * len(SMALL.table_sizes)
        assert 0 < mapped_bytes(engine) - mapped < 2 * pages * os.sysconf("SC_PAGESIZE")


def test_a_table_that_memory_could_not_hold_is_served(engine_path: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", shape=SMALL, kinds=("f32",))
    assumed = ("--as", "cpu", "--assume", "host_memory=2GiB,cores=2")
    with Engine(engine_path, *assumed) as engine:
        engine.expect(m.Hello)
        engine.send(engine.offer(path, batch=2, mlock=True))
        first = engine.expect(m.Caps).configurations[0]
    assert not first.missing
    other = dataclasses.replace(SMALL, table_layer=-1)
    plain = written(tmp_path / "p.gguf", shape=other, kinds=("f32",))
    with Engine(engine_path, *assumed) as engine:
        engine.expect(m.Hello)
        engine.send(engine.offer(plain, batch=2, mlock=True))
        without = engine.expect(m.Caps).configurations[0]
    total, total_without = (
        sum(part.bytes for part in configuration.memory) for configuration in (first, without)
    )
    assert abs(total - total_without) < 16 << 20
