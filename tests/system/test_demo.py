"""What the README tells a newcomer to run first, with the installed service and engine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUPERVISOR = Path(sys.executable).with_name("strata-supervisor")


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.skipif(not SUPERVISOR.exists(), reason="the package is not installed")
def test_the_demo_shows_what_it_says(repository: Path, smollm2_path: Path, tmp_path: Path) -> None:
    assert smollm2_path.is_file()
    # A copy, as the demo keeps its run directory beside itself.
    script = tmp_path / "tools" / "demo.py"
    script.parent.mkdir()
    shutil.copy(repository / "tools" / "demo.py", script)
    found = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "same answers as without it: yes" in found.stdout
    assert "Traceback" not in found.stderr
