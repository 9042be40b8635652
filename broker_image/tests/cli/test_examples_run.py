"""The programs in examples/, each twice, against `delaymq standalone` with its default levels."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq_testing.cli_running import SMALL_FILES, Standalone, called

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.py"))
SHOWN_BY_EXAMPLES = {
    "administer": "continues at 0 instead of 5",
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
    broker = Standalone(tmp_path_factory.mktemp("broker"), SMALL_FILES)
    with broker.running():
        yield broker


def run(standalone: Standalone, path: Path) -> str:
    """What the program prints. It waits for its own messages, not for those of an earlier run: none is left behind."""
    done = subprocess.run(
        [sys.executable, str(path), f"127.0.0.1:{standalone.namesrv_port}"],
        env={**os.environ, **standalone.environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    waiting = called("delay", "pending", "--json", environment=standalone.environment)
    assert json.loads(waiting.out)["total"] == 0
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_twice(standalone: Standalone, path: Path) -> None:
    assert path.read_text().startswith('"""')
    printed = [run(standalone, path) for _ in range(2)]
    assert all(SHOWN_BY_EXAMPLES[path.stem] in each for each in printed)
    assert printed[0].count("\n") == printed[1].count("\n")
