"""Object files of one instruction set may not export code that the linker could use elsewhere.

A weak definition (an inline function or a template) in a file compiled with -mavx512* may be the
copy that the whole program keeps; an older processor would then meet an illegal instruction in code
that never asked for AVX-512.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ISAS = ("avx2", "avx512", "neon")
# Weak and unique definitions of functions (W, u) and objects (V).
SHARED = {"W", "V", "u"}


def isa_objects() -> list[Path]:
    """The newest object file of each such source in the build trees under build/."""
    newest: dict[str, Path] = {}
    build = REPOSITORY / "build"
    for isa in ISAS:
        for path in build.rglob(f"*_{isa}.cpp.o"):
            known = newest.get(path.name)
            if known is None or path.stat().st_mtime > known.stat().st_mtime:
                newest[path.name] = path
    return sorted(newest.values())


def shared_symbols(nm_output: str) -> list[str]:
    """Lines of `nm` about symbols that the linker may merge with those of other files."""
    found = []
    for line in nm_output.splitlines():
        fields = line.split()
        # "ADDRESS KIND NAME"; undefined ones ("U NAME", "w NAME") are no definitions. Sanitizers
        # add DW.ref pointers to the exception handler: data, the same in every file.
        if len(fields) >= 3 and fields[1] in SHARED and not fields[2].startswith("DW.ref."):
            found.append(line)
    return found


def test_objects_define_nothing_shared() -> None:
    objects = isa_objects()
    if not objects:
        pytest.skip("no object files of one instruction set under build/ (make install)")
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    for path in objects:
        out = subprocess.run([nm, "-C", str(path)], capture_output=True, text=True, check=True)
        assert out.stdout.strip(), f"{path.name}: nm lists nothing, so nothing was checked"
        assert shared_symbols(out.stdout) == [], path.name


def test_the_check_finds_weak_symbols(tmp_path: Path) -> None:
    """The check itself fails on an inline function with external linkage."""
    compiler = shutil.which("c++") or shutil.which("g++")
    nm = shutil.which("nm")
    if compiler is None or nm is None:
        pytest.skip("needs a C++ compiler and nm")
    source = tmp_path / "weak_avx2.cpp"
    source.write_text("inline int shared() { return 1; }\nint user() { return shared(); }\n")
    target = tmp_path / "weak_avx2.cpp.o"
    subprocess.run([compiler, "-O0", "-c", str(source), "-o", str(target)], check=True)
    out = subprocess.run([nm, "-C", str(target)], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in shared_symbols(out.stdout)] == ["shared()"]
