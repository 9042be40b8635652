"""Checks of size and form, part of `make check`: lines of functions and modules, modules of a folder, prose columns."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES = 70
MODULE_LINES = 500
FOLDER_MODULES = 20
PROSE_COLUMNS = 100
NOT_OURS = frozenset({"__pycache__", "build", "node_modules", "results"})
TESTS = frozenset({"tests", "e2e"})
"""Folders below these may have any number of modules: a test module is found by its name, not by its folder."""

_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_THROTTLED = re.compile(r"_throttled(_[a-z0-9_]+)?")
_DIRECTIVES = ("# fmt:", "# ruff:", "# type:")
_LINK_TARGET = re.compile(r"\]\([^)\s]*\)")
_FENCE = re.compile(r"\s*(```|~~~)")


def problems(root: Path = ROOT) -> Iterator[str]:
    """Yield a line for each violation, with its file."""
    modules: Counter[Path] = Counter()
    for path in sorted(_files(root)):
        name = path.relative_to(root)
        if path.suffix == ".md":
            yield from (
                f"{name}:{line}: prose of {wide} columns: wrap it (limit: {PROSE_COLUMNS})"
                for line, wide in too_wide(path.read_text())
            )
        elif path.suffix == ".py":
            modules[name.parent] += not TESTS & set(name.parts)
            yield from (f"{name}{problem}" for problem in of_module(path.read_text()))
    yield from (
        f"{folder}: {count} modules: split it (limit: {FOLDER_MODULES})"
        for folder, count in modules.items()
        if count > FOLDER_MODULES
    )


def of_module(text: str) -> Iterator[str]:
    """Yield each violation in one module, with its line number."""
    lines = len(text.splitlines())
    if lines > MODULE_LINES:
        yield f": {lines} lines: split the module (limit: {MODULE_LINES})"
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f":{node.lineno}: {node.name} has {length} lines: split it (limit: {FUNCTION_LINES})"
    yield from _misnamed_loggers(tree)
    yield from _undocumented(tree, text.splitlines())


def _misnamed_loggers(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(statement.value, ast.Call):
            continue
        target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
        name = target.id if isinstance(target, ast.Name) else ""
        made_by = ast.unparse(statement.value.func).rpartition(".")[2]
        if made_by == "getLogger" and name != "_logger":
            yield f":{statement.lineno}: rename the module's logger to _logger"
        elif made_by == "ThrottledLogger" and not _THROTTLED.fullmatch(name):
            yield f":{statement.lineno}: rename the throttled logger to _throttled or _throttled_NOUN"


def _undocumented(tree: ast.Module, lines: list[str]) -> Iterator[str]:
    """Yield constants with a comment above them that does not introduce a group."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef):
            continue
        for index, statement in enumerate(node.body):
            name = _constant(statement)
            above = lines[statement.lineno - 2].strip() if statement.lineno > 1 else ""
            if not name or not above.startswith("#") or above.startswith(_DIRECTIVES):
                continue
            if not above.endswith(":"):
                yield (
                    f":{statement.lineno}: document {name} by a docstring below it, or end the comment above it with a"
                    " colon if it introduces a group"
                )
            elif _group_size(node.body[index:]) < 2:
                yield (
                    f":{statement.lineno}: document {name} by a docstring below it: the comment above it does not"
                    " introduce at least two constants without docstrings"
                )


def _group_size(body: list[ast.stmt]) -> int:
    """Count the constants at the start of `body` up to a blank line, a comment or a constant with a docstring."""
    size, end = 0, body[0].lineno - 1
    for statement, following in zip_longest(body, body[1:]):
        if not _constant(statement) or statement.lineno != end + 1 or _is_docstring(following):
            break
        size += 1
        end = statement.end_lineno or statement.lineno
    return size


def _constant(statement: ast.stmt) -> str | None:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    return target.id if isinstance(target, ast.Name) and _CONSTANT.fullmatch(target.id) else None


def _is_docstring(statement: ast.stmt | None) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def too_wide(text: str) -> Iterator[tuple[int, int]]:
    """Yield lines of prose that are too wide, with their columns; code, tables and link targets do not count."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith("|"):
            columns = len(_LINK_TARGET.sub("]()", line))
            if columns > PROSE_COLUMNS:
                yield number, columns


def _files(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in NOT_OURS and (name == ".ci" or not name.startswith("."))]
        yield from (Path(folder) / name for name in names if name.endswith((".py", ".md")))


if __name__ == "__main__":
    found = list(problems())
    for sentence in found:
        print(f"FAILED: {sentence}")
    sys.exit(1 if found else 0)
