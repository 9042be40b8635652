"""The programs in examples/ against `delaymq standalone` as a process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_running import Standalone

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.py"))
SHOWN_BY_EXAMPLES = {
    "administer": "goes on at 0 instead of 5",
    "batches": "20 rows in the table",
    "by_hand": "message 4",
    "ordered_steps": "each in order: True",
    "payments": "shipped: a book, a lamp",
    "polling": "the same again: 45",
    "prices": "coal: not sold here",
    "reminder": "'water the plants' arrived after",
    "resend_dead_letters": "3 paid",
    "retries": "dead letter: 'pay 5 EUR'",
    "unpaid_orders": "not paid in time, cancelled",
}


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    broker = Standalone(tmp_path_factory.mktemp("broker"))
    with broker.running():
        yield broker


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run(standalone: Standalone, path: Path, tmp_path: Path) -> None:
    source = path.read_text()
    done = subprocess.run(
        [sys.executable, str(path), f"127.0.0.1:{standalone.namesrv_port}"],
        env={**os.environ, **standalone.environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert SHOWN_BY_EXAMPLES[path.stem] in done.stdout
    assert source.startswith('"""')
