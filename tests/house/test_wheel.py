"""What is installed is what is in the repository."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.house.test_docs import ROOT, tracked


def test_the_wheel_carries_every_file_of_the_product(tmp_path: Path) -> None:
    """Code, pages, migrations and policies: an installation that lacks one would only fail when it is needed."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    product = {file.relative_to(ROOT).as_posix() for file in tracked()}
    wanted = {path for path in product if path.split("/")[0] in ("engine", "governance", "migrations", "policies")}
    assert wanted
    assert wanted <= inside, sorted(wanted - inside)
