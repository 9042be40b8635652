"""Agreement of the pre-commit hooks with `make check`."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


def test_hooks_run_the_commands_of_make_check_in_its_order() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^check-all:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    assert [hook["entry"] for hook in HOOKS] == commands


def test_no_hook_installs_tools() -> None:
    assert [repo["repo"] for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]] == [
        "local"
    ]
    assert {hook["language"] for hook in HOOKS} == {"system"}


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_each_hook_matches_existing_files(hook: dict[str, str]) -> None:
    """A moved folder would leave a pattern that matches nothing."""
    folders = [ROOT / name for name in ("broker_image/src", "operator/src", "spark/src", ".ci")]
    paths = [path for folder in folders for path in folder.rglob("*")] + list(ROOT.glob("*.*"))
    assert any(re.search(hook["files"], str(path.relative_to(ROOT))) for path in paths)
