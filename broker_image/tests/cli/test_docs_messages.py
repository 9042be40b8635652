"""The code contains the messages that the pages on operations explain, and the tests that pages name."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OPERATIONS = ROOT / "docs/operations"
SOURCES = ROOT / "broker_image/src/delaymq"
SECTIONS = {
    "troubleshooting.md": ("## Messages of", "\n## Response"),
    "logs.md": ("## Events to look for", "\n## "),
    "tls.md": ("## Clients", "\n## "),
    "name-server-rules.md": ("## Metrics and error messages", "\n## "),
}
"""Sections with tables of messages: beginning, and what follows."""

VALUE = "…"
"""In a quoted text: whatever the code puts there."""


@cache
def texts_of_the_code() -> tuple[str, ...]:
    """All strings of the package, with VALUE where a value is put in."""
    found = []
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else VALUE for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sdr]", VALUE, node.value))
    return tuple(found)


def is_said(quoted: str) -> bool:
    """Whether one string of the code has the pieces of a quoted text, in order."""
    pieces = [re.escape(piece.strip()) for piece in quoted.split(VALUE)]
    wanted = re.compile(".*".join(pieces), re.DOTALL)
    return any(wanted.search(text) for text in texts_of_the_code())


def quoted_texts(page: str) -> list[str]:
    start, end = SECTIONS[page]
    section = (OPERATIONS / page).read_text().split(start, 1)[1].split(end, 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row) if " " in text]


def test_pages_quote_many_messages() -> None:
    assert {page: len(quoted_texts(page)) for page in SECTIONS if len(quoted_texts(page)) < 6} == {}
    assert len(quoted_texts("troubleshooting.md")) >= 40


@pytest.mark.parametrize(("page", "quoted"), [(page, text) for page in SECTIONS for text in quoted_texts(page)])
def test_quoted_message_is_in_the_code(page: str, quoted: str) -> None:
    assert is_said(quoted), f"{page}: no string of the code has: {quoted}"


def test_unknown_message_is_detected() -> None:
    assert not is_said("the broker has no more biscuits for …")


@pytest.mark.parametrize("page", ["operations/durability.md", "comparison.md"])
def test_tests_named_on_a_page_exist(page: str) -> None:
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text())
    sources = "".join(
        path.read_text() for folder in ("broker_image/tests", "e2e") for path in (ROOT / folder).rglob("test_*.py")
    )
    assert len(named) >= 8
    assert [name for name in named if f"def {name}(" not in sources] == []
