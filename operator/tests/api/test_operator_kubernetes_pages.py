"""Commands of README and quick start that need only an API server, each page run twice.

Commands that need pods, an operator or images are omitted; e2e/kind covers them with clusters.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from delaymq_operator_testing.api_server import ApiServer

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "docs/quickstart-kubernetes.md"]
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
SAVED = re.compile(r"^Save this as `([\w.-]+)`:\n\n```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
ANSWERED = {"apply", "patch", "get", "describe"}


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of the page's kubectl commands, without pipelines and subcommands other than `ANSWERED`."""
    lines = "".join(COMMANDS.findall(page.read_text())).replace("\\\n", " ").splitlines()
    split = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("kubectl ") and "|" not in line]
    return [words for words in split if words[0] in ANSWERED]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_page_can_be_repeated(page: Path, api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name, _ in SAVED.findall(page.read_text())}
    for name, text in SAVED.findall(page.read_text()):
        files[name].write_text(text)
    typed = commands(page)
    assert {"apply", "get"} <= {words[0] for words in typed}
    for words in typed * 2:
        found = [str(files.get(word, ROOT / word if word.startswith("examples/") else word)) for word in words]
        api_server.kubectl("-n", namespace, *found)
