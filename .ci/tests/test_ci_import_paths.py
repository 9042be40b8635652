"""Tests, mypy and editors find the packages that tests share in the same folders."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
FOLDERS = TOOLS["pytest"]["ini_options"]["pythonpath"]


def test_an_editor_finds_what_pytest_finds() -> None:
    assert TOOLS["pyright"]["extraPaths"] == FOLDERS


def test_each_folder_is_there() -> None:
    assert [name for name in FOLDERS if not (ROOT / name).is_dir()] == []
