"""Writes docs/architecture-modules.md: every module by its folder, with the first paragraph of its docstring."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "architecture-modules.md"
SOURCES: Final = ("broker_image/src", "operator/src", "spark/src")
WIDTH: Final = 100
_BLOCK: Final = re.compile(r"(<!-- (\S+): written by `make docs` -->\n).*?(\n<!-- end -->)", re.DOTALL)


def with_modules(text: str) -> str:
    """The page with its tables as the modules are; everything between the marks is written by people."""
    return _BLOCK.sub(lambda found: found[1] + "\n" + "\n".join(_packages(found[2])) + found[3], text)


def modules(source: str) -> list[Path]:
    """The modules of one distribution."""
    return sorted((ROOT / source).rglob("*.py"))


def purpose(module: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse(module.read_text()))
    if not docstring:
        raise ValueError(f"{module}: a module begins with a docstring that says what it is for")
    return " ".join(docstring.split("\n\n", 1)[0].split())


def _packages(source: str) -> Iterator[str]:
    for package in sorted({module.parent for module in modules(source)}):
        init = package / "__init__.py"
        name = ".".join(package.relative_to(ROOT / source).parts)
        yield f"### {name}\n\n{textwrap.fill(purpose(init), WIDTH)}\n{_link(init)}\n"
        rows = [f"| {_link(module)} | {_cell(module)} |\n" for module in modules(source) if _is_in(package, module)]
        if rows:
            yield "| | |\n|---|---|\n" + "".join(rows)


def _is_in(package: Path, module: Path) -> bool:
    return module.parent == package and module.name != "__init__.py"


def _link(module: Path) -> str:
    return f"[`{module.stem}`](../{module.relative_to(ROOT)})"


def _cell(module: Path) -> str:
    return purpose(module).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(with_modules(PAGE.read_text()))
