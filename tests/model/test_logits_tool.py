"""tools/logits.py: the same logits as the engine's, and refusals instead of other modes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools import logits as tool
from tools.synth_model import Shape, write_model

TOKENS = [5, 250, 17, 0, 319, 80, 80, 3]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models")
    return str(write_model(folder / "m.gguf", Shape(head_dim=32), kind="q4_1"))


def run(path: str, out: Path, *flags: str) -> np.ndarray:
    text = ",".join(map(str, TOKENS))
    assert tool.main([path, "--tokens", text, "--out", str(out), *flags]) == 0
    return np.load(out)


def test_chunks_and_modes(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "logits.npy"
    exact = run(path, out, "--activations", "f32", "--kv", "f32")
    assert exact.shape == (len(TOKENS), 320)
    assert exact.dtype == np.float32
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith(f"2 token 17 -> {exact[2].argmax()} (-")
    chunked = run(path, out, "--activations", "f32", "--kv", "f32", "--chunk", "3")
    np.testing.assert_array_equal(chunked, exact)
    rounded = run(path, out, "--activations", "int8", "--threads", "1", "--isa", "portable")
    assert 0 < np.abs(rounded - exact).mean() < 0.1 * exact.std()
    # Left to choose, the tool takes what runs.
    masked = run(path, out, "--without-kernel", "quantize*", "--without-kernel", "rms_norm_q*")
    assert np.abs(masked - exact).max() < 1e-2


def test_tokens_from_a_file(path: str, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("5 250\n17")
    out = tmp_path / "logits.npy"
    assert tool.main([path, "--tokens", f"@{tmp_path / 'ids'}", "--out", str(out)]) == 0
    assert np.load(out).shape == (3, 320)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--activations", "int8", "--without-kernel", "matmul*:act=int8"], "no kernel for matmul"),
        (["--kv", "f16", "--without-kernel", "attention*:kv=f16"], "no kernel for attention"),
        (["--without-kernel", "rope*"], "no kernel for rope"),
        (["--without-kernel", "rope*:rows~3"], "config.without_kernel"),
        (["--isa", "sse"], "config.isa"),
        (["--chunk", "100000"], "config.prefill"),
    ],
)
def test_refusals(path: str, flags: list[str], text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        tool.main([path, "--tokens", "1,2", *flags])
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [("1,320", "token 320 at index 1; allowed are 0 to 319"), ("-1", "token -1 at index 0")],
)
def test_tokens_out_of_range(path: str, tokens: str, text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        tool.main([path, f"--tokens={tokens}"])
    assert text in str(caught.value)


def test_more_tokens_than_the_model_takes(path: str) -> None:
    with pytest.raises(SystemExit) as caught:
        tool.main([path, "--tokens", ",".join(["1"] * 513)])
    assert "the model was made for 512 tokens" in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"gguf\.open") as caught:
        tool.main([str(tmp_path / "none.gguf"), "--tokens", "1"])
    assert "none.gguf" in str(caught.value)


@pytest.mark.parametrize("chunk", ["0", "-5", "many"])
def test_a_chunk_has_rows(path: str, chunk: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tool.main([path, "--tokens", "1,2", f"--chunk={chunk}"])
    assert caught.value.code == 2
    assert "--chunk" in capsys.readouterr().err
