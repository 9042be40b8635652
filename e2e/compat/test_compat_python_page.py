"""Programs of docs/client.md, run unchanged and twice in succession, on either broker with its default levels."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.brokers import Cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
ADDRESS = "127.0.0.1:9876"
LIMIT_S = 60.0
OURS = ("Schedule and change messages", "List pending messages", "Repeat a message")
"""Programs that require a DelayMQ broker."""
VARYING = re.compile(r"\b[0-9A-F]{32}\b|(?<!['\d])\d+")
"""Ids and numbers, except those within quotes, which belong to bodies."""


@pytest.fixture(scope="module")
def default_cluster(new_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    with new_cluster(messageDelayLevel=None) as cluster:
        yield cluster


def programs() -> list[tuple[str, str]]:
    """Return the programs with their headings."""
    found, heading = [], ""
    for piece in re.split(r"^(#+ .*)$", PAGE.read_text(), flags=re.MULTILINE):
        if piece.startswith("#"):
            heading = piece.strip("# ")
        found += [(heading, text) for text in re.findall(r"^```python\n(.*?)^```", piece, re.DOTALL | re.MULTILINE)]
    return found


def test_page_has_a_program_for_each_way_of_sending_and_consuming() -> None:
    assert [heading for heading, _ in programs()] == [
        "Sending", "Schedule and change messages", "List pending messages", "Repeat a message", "Requests and replies",
        "Transactions", "Consuming with a handler", "In batches", "Consuming by polling",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("heading", "program"),
    [
        pytest.param(heading, program, id=heading, marks=pytest.mark.ours_only if heading in OURS else ())
        for heading, program in programs()
    ],
)
def test_program_of_the_page_runs_twice_in_succession(
    heading: str, program: str, default_cluster: Cluster, tmp_path: Path
) -> None:
    assert program.count(ADDRESS) == 1
    path = tmp_path / "program.py"
    path.write_text(program.replace(ADDRESS, default_cluster.namesrv_address))
    printed = []
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-W", "error", str(path)], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        printed.append(Counter(VARYING.sub("…", line) for line in ended.stdout.splitlines()))
    assert printed[0] == printed[1]
