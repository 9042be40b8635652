"""The installed package contains the page."""

import subprocess
import sys
import zipfile
from pathlib import Path

from delaymq.server.console.pages import STATIC_PATH

DISTRIBUTION = Path(__file__).parents[2] / "broker_image"
BUILD_TIMEOUT_S = 100


def test_wheel_contains_every_file_of_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=DISTRIBUTION, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
    [wheel] = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = {f"delaymq/server/console/static/{each.name}" for each in STATIC_PATH.iterdir()}
    assert len(files) > 10
    assert files <= inside
