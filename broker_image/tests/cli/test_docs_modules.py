"""From README to the code in two steps: pages link the modules they name, and each module is linked."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from modules_page import PAGE, ROOT, SOURCES, modules, with_modules

ARCHITECTURE = sorted((ROOT / "docs").glob("architecture*.md"))
MODULES = {module for source in SOURCES for module in modules(source)}
PATHS = {str(module.with_suffix("")) for module in MODULES if module.name != "__init__.py"}
PACKAGES = {str(module.parent) for module in MODULES}
WAYS = {
    "kill -9": ("docs/architecture-delay.md", "delaymq/broker/delivery/recovery.py"),
    "level above the table": ("docs/architecture-delay.md", "delaymq/broker/delivery/delay_rewrite.py"),
    "SYSTEM_BUSY": ("docs/operations/flow-control.md", "delaymq/server/requests/flow_control.py"),
    "delaymq group reset": ("docs/operations/commands.md", "delaymq/cli/commands/group/reset.py"),
    "222": ("docs/compatibility.md", "delaymq/broker/processors/members.py"),
}
"""What a reader looks for: the page that README links, and the module that this page links."""

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"(?<![\w/])[a-z_]+(?:/[a-z_]+)*(?:\.py|/)")
"""A module or a folder in a diagram."""

RESERVED = {"actor", "as", "end", "graph", "left", "loop", "note", "of", "over", "participant", "right", "subgraph"}
"""Words that Mermaid does not take as names of participants."""

MESSAGE = re.compile(r"    +(\w+)--?>>(\w+): [^;#]+")
STATEMENT = re.compile(r"    +(?:(?:alt|else|loop|opt) [^;#]+|end|Note over \w+(?:,\w+)?: [^;#]+)")
DECLARED = re.compile(r"    (?:actor (\w+)|participant (\w+) as \S[^;#]*)")
NODE = re.compile(r'    +(?:subgraph )?(\w+)(?:\["[^"]+"\]|\[\("[^"]+"\)\])')
EDGES = re.compile(r"    +\w+(?: --> \w+)+")


def links(page: Path) -> Iterator[tuple[str, Path]]:
    """Text and file of each link to a file."""
    for text, target in LINK.findall(page.read_text()):
        if "://" not in target:
            yield text, (page.parent / target.partition("#")[0]).resolve()


def diagrams() -> list[str]:
    return [diagram for page in ARCHITECTURE for diagram in DIAGRAM.findall(page.read_text())]


def is_module(name: str) -> bool:
    """Whether a text in code style names a module, and not as well a folder."""
    path = "/" + name.removesuffix(".py").replace(".", "/")
    return any(each.endswith(path) for each in PATHS) and not any(each.endswith(path) for each in PACKAGES)


def is_package(name: str) -> bool:
    return any(each.endswith("/" + name.removesuffix("/")) for each in PACKAGES)


def test_module_page_equals_the_modules() -> None:
    assert PAGE.read_text() == with_modules(PAGE.read_text()), "run `make docs`"


def test_architecture_pages_link_every_module() -> None:
    linked = {file for page in ARCHITECTURE for _, file in links(page)}
    assert MODULES - linked == set()


@pytest.mark.parametrize("page", ARCHITECTURE, ids=lambda page: page.name)
def test_named_module_or_folder_is_a_link(page: Path) -> None:
    bare = CODE.findall(LINK.sub("", FENCED.sub("", page.read_text())))
    if page != PAGE:
        assert [name for name in bare if is_module(name) or (name.endswith("/") and is_package(name))] == []


@pytest.mark.parametrize("page", ARCHITECTURE, ids=lambda page: page.name)
def test_link_text_of_a_module_matches_its_target(page: Path) -> None:
    for text, file in links(page):
        name = text.strip("`").removesuffix(".py")
        if text.startswith("`") and is_module(name):
            assert str(file.with_suffix("")).endswith("/" + name.replace(".", "/")), text


@pytest.mark.parametrize("way", WAYS)
def test_code_of_a_behaviour_is_two_steps_from_the_readme(way: str) -> None:
    page, module = WAYS[way]
    assert ROOT / page in {file for _, file in links(ROOT / "README.md")}
    assert ROOT / "broker_image/src" / module in {file for _, file in links(ROOT / page)}
    assert way in " ".join((ROOT / page).read_text().split())


def test_process_and_five_request_paths_have_diagrams() -> None:
    assert [diagram.split()[0] for diagram in diagrams()].count("flowchart") == 1
    assert [diagram.split()[0] for diagram in diagrams()].count("sequenceDiagram") == 5


@pytest.mark.parametrize("diagram", diagrams())
def test_diagrams_name_existing_modules_and_folders(diagram: str) -> None:
    named = NAMED.findall(diagram)
    assert named
    for name in named:
        paths = {f"{package}/" for package in PACKAGES} if name.endswith("/") else map(str, MODULES)
        assert any(path.endswith(f"/{name}") for path in paths), name


@pytest.mark.parametrize("diagram", diagrams())
def test_diagrams_are_valid(diagram: str) -> None:
    kind, *lines = diagram.splitlines()
    if kind.startswith("flowchart"):
        declared = {found[1] for line in lines if (found := NODE.fullmatch(line))}
        used = {word for line in lines if EDGES.fullmatch(line) for word in re.findall(r"\w+", line)}
        wrong = [line for line in lines if not (NODE.fullmatch(line) or EDGES.fullmatch(line) or line == "    end")]
    else:
        declared = {found[1] or found[2] for line in lines if (found := DECLARED.fullmatch(line))}
        used = {end for line in lines if (found := MESSAGE.fullmatch(line)) for end in found.groups()}
        wrong = [line for line in lines if not any(form.fullmatch(line) for form in (DECLARED, MESSAGE, STATEMENT))]
    assert wrong == []
    assert used <= declared
    assert not {name.lower() for name in declared} & RESERVED
    opened = sum(line.split()[0] in ("subgraph", "alt", "loop", "opt") for line in lines)
    assert opened == sum(line.split() == ["end"] for line in lines)
