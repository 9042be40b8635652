"""Existence of the paths and make targets that CONTRIBUTING.md names."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
MADE = ("build/",)
"""Folders that make targets create."""


def test_every_named_path_exists() -> None:
    quoted = re.findall(r"`([\w.-]+(?:/[\w.*-]*)+)`", PAGE)
    shown = re.findall(r"(?<= )((?:broker_image|e2e|operator|spark)/[\w./-]+)", PAGE)
    # Folders below src/ are named relative to their package, as in the page on the architecture.
    named = {path for path in quoted + shown if (ROOT / path.split("/")[0]).exists() and not path.startswith(MADE)}
    assert len(named) > 30
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_every_named_target_is_in_the_makefile() -> None:
    named = set(re.findall(r"`(?:\w+=\w+ )?make ([a-z-]+)`", PAGE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named >= {"setup-dev", "run", "format", "check", "test"}
    assert named <= targets
