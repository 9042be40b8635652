"""Limits and rules that .ci/tidiness.py enforces."""

from pathlib import Path

import pytest
from tidiness import FOLDER_MODULES, FUNCTION_LINES, MODULE_LINES, PROSE_COLUMNS, of_module, problems, too_wide

WIDE = "word " * (PROSE_COLUMNS // 5) + "more"


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_function_may_have_70_lines(kind: str) -> None:
    text = f"\nclass Room:\n    {kind} work(self):\n" + "        pass\n" * (FUNCTION_LINES - 1)
    assert list(of_module(text)) == []
    assert list(of_module(text + "        pass\n")) == [":3: work has 71 lines: split it (limit: 70)"]


def test_module_may_have_500_lines() -> None:
    assert list(of_module("pass\n" * MODULE_LINES)) == []
    assert list(of_module("pass\n" * (MODULE_LINES + 1))) == [": 501 lines: split the module (limit: 500)"]


@pytest.mark.parametrize("line", ["_log = getLogger(__name__)", "logger: Logger = logging.getLogger(__name__)"])
def test_logger_of_a_module_must_be_named_logger(line: str) -> None:
    assert list(of_module(line)) == [":1: rename the module's logger to _logger"]
    assert list(of_module("_logger = logging.getLogger(__name__)")) == []
    assert list(of_module("def main():\n    root = logging.getLogger()")) == []


@pytest.mark.parametrize("name", ["_log", "_throttled_", "throttled", "_throttledpeers", "_failures: ThrottledLogger"])
def test_throttled_logger_of_a_module_must_be_named_throttled(name: str) -> None:
    assert list(of_module(f"{name} = throttled_log.ThrottledLogger(_logger, now_ms)")) == [
        ":1: rename the throttled logger to _throttled or _throttled_NOUN"
    ]


@pytest.mark.parametrize("name", ["_throttled", "_throttled_failures", "_throttled: ThrottledLogger"])
def test_throttled_logger_may_be_one_of_several(name: str) -> None:
    assert list(of_module(f"{name} = ThrottledLogger(_logger, now_ms)")) == []


@pytest.mark.parametrize("indent", ["", "class Limits:\n    "])
def test_constant_is_documented_by_a_docstring_below_it(indent: str) -> None:
    inner = " " * 4 * bool(indent)
    for below in ("", f"{inner}TIMEOUT = 5\n"):
        found = list(of_module(f"{indent}# Bytes.\n{inner}LIMIT = 4\n{below}"))
        assert [sentence.partition(": ")[2] for sentence in found] == [
            "document LIMIT by a docstring below it, or end the comment above it with a colon if it introduces a group"
        ]
    assert list(of_module(f'{indent}LIMIT = 4\n{inner}"""Bytes."""\n')) == []
    assert list(of_module(f"{indent}# fmt: off\n{inner}LIMIT = 4\n")) == []
    assert list(of_module(f"{indent}# Bytes and seconds:\n{inner}LIMIT = 4\n{inner}TIMEOUT = 5\n")) == []


@pytest.mark.parametrize(
    "text",
    [
        "LIMIT = 4",
        "LIMIT = 4\n\nTIMEOUT = 5",
        "LIMIT = 4\n# Seconds:\nTIMEOUT = 5\nPAUSE = 6",
        'LIMIT = 4\nTIMEOUT = 5\n"""Seconds."""',
        'LIMIT = 4\n"""Bytes."""\nTIMEOUT = 5\nPAUSE = 6',
        "LIMIT = 4\n_logger = logging.getLogger(__name__)",
        "LIMIT = 4\nassert LIMIT < 5",
    ],
)
def test_comment_above_constants_introduces_at_least_two_without_docstrings(text: str) -> None:
    assert list(of_module(f"# Limits:\n{text}\n")) == [
        ":2: document LIMIT by a docstring below it: the comment above it does not introduce at least two constants"
        " without docstrings"
    ]


def test_group_of_constants_may_precede_a_constant_with_a_docstring() -> None:
    group = "# Limits:\nLIMIT = (\n    4,\n)\nTIMEOUT: Final = 5\n"
    assert list(of_module(f'{group}PAUSE = 6\n"""Seconds."""\n')) == []
    assert list(of_module(f"{group}assert TIMEOUT\n")) == []


def test_prose_exceeding_100_columns_is_reported() -> None:
    assert list(too_wide(WIDE[:PROSE_COLUMNS])) == []
    assert list(too_wide(f"# Title\n\n{WIDE}\n")) == [(3, len(WIDE))]


@pytest.mark.parametrize("text", [f"```sh\n{WIDE}\n```", f"| {WIDE} |", f"[page]({'x' * PROSE_COLUMNS})"])
def test_code_tables_and_link_targets_may_be_wide(text: str) -> None:
    assert list(too_wide(text)) == []
    assert list(too_wide(f"{text}\n{WIDE}")) != []


def test_number_of_modules_per_folder_is_limited_except_for_tests(tmp_path: Path) -> None:
    for folder in ("room", "tests", ".venv", "build"):
        (tmp_path / folder).mkdir()
        for number in range(FOLDER_MODULES + 1):
            (tmp_path / folder / f"m{number}.py").touch()
    assert list(problems(tmp_path)) == ["room: 21 modules: split it (limit: 20)"]
    (tmp_path / "room/m0.py").unlink()
    assert list(problems(tmp_path)) == []


def test_findings_name_their_file(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(WIDE)
    (tmp_path / "code.py").write_text("log = logging.getLogger()")
    assert list(problems(tmp_path)) == [
        "code.py:1: rename the module's logger to _logger",
        f"page.md:1: prose of {len(WIDE)} columns: wrap it (limit: {PROSE_COLUMNS})",
    ]
