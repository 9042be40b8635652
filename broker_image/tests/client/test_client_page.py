"""docs/client.md lists the options of the code. `python test_client_page.py` regenerates its tables."""

import ast
import inspect
import re
from pathlib import Path

from delaymq.client import options

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"
SECTION = re.compile(r"<!-- options: (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def table(class_name: str) -> str:
    """The options of a class: name, default, what its docstring says."""
    tree = ast.parse(Path(inspect.getfile(getattr(options, class_name))).read_text())
    [wanted] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
    lines = ["| option | default | description |", "| --- | --- | --- |"]
    for node, following in zip(wanted.body, [*wanted.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            lines.append(f"| `{node.target.id}` | {default(node.value)} | {said(following)} |")
    return "\n".join(lines)


def default(value: ast.expr) -> str:
    """As a reader writes it; products of whole numbers are worked out."""
    if isinstance(value, ast.Call):  # field(default=…, repr=False)
        value = next(each.value for each in value.keywords if each.arg == "default")
    text = ast.unparse(value)
    if isinstance(value, ast.Attribute):
        return f"`{text}`"
    if text == "''":
        return "empty"
    number = ast.literal_eval(value) if not isinstance(value, ast.BinOp) else _product(text)
    return f"{number:,}" if type(number) is int else f"`{number}`"


def _product(text: str) -> int:
    product = 1
    for factor in text.split(" * "):
        product *= int(factor)
    return product


def said(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split()).replace("|", "\\|").replace("~/", "\\~/")
    return ""


def written(page: str) -> str:
    """The page with its tables as they must be."""
    return SECTION.sub(lambda found: f"<!-- options: {found[1]} -->\n{table(found[1])}\n<!-- end -->", page)


def test_page_lists_the_options() -> None:
    page = PAGE.read_text()
    assert set(SECTION.findall(page)) == {name for name in vars(options) if name.endswith("Options")}
    assert page == written(page), f"write the tables again: python {Path(__file__).name}"


def test_numbers_in_the_page_equal_the_codes() -> None:
    text = PAGE.read_text()
    push = options.PushConsumerOptions()
    assert f"{push.max_cached_messages:,} messages or {push.max_cached_bytes >> 20} MiB" in text
    assert f"for longer than {push.consume_timeout_ms // 60_000} min, its message" in text
    assert f"Up to {push.concurrency} handlers" in text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
