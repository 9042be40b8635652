"""Agreement of pytest, mypy and editors on the folders of shared test packages."""

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "$MYPY_CONFIG_FILE_DIR/"


@pytest.mark.parametrize("folder", ["", "spark"])
def test_mypy_searches_each_folder_that_pytest_searches(folder: str) -> None:
    tools = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["tool"]
    searched = tools["pytest"]["ini_options"]["pythonpath"]
    assert [name for name in searched if not (ROOT / folder / name).is_dir()] == []
    assert set(searched) <= {path.removeprefix(CONFIG) for path in tools["mypy"]["mypy_path"]}


def test_editors_search_the_folders_that_pytest_searches() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tools["pyright"]["extraPaths"] == tools["pytest"]["ini_options"]["pythonpath"]


def test_mypy_checks_all_code_except_analytics() -> None:
    """The analytics have a separate environment and run, `make check-spark`."""
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    ours = [Path(name) for name in listed.stdout.splitlines() if not name.startswith("spark/")]
    assert ours
    assert [path for path in ours if not any(path.is_relative_to(folder) for folder in checked)] == []
