"""The commands of README and docs/analytics.md are ones that `delaymq-spark` takes."""

import re
import shlex
from pathlib import Path

import pytest
from delaymq_spark.arguments import parse

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "docs/analytics.md"])
def test_commands_of_a_page_are_taken(page: str) -> None:
    lines = "".join(BLOCK.findall((ROOT / page).read_text())).splitlines()
    split = [shlex.split(line, comments=True) for line in lines if re.match(r"\S*delaymq-spark ", line)]
    assert split
    for _, *words in split:
        assert parse(words, 0).job in words
