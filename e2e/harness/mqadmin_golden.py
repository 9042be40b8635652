"""Lists of mqadmin commands, and golden files with their output with RocketMQ's broker.

A golden folder contains one normalised file per command (mqadmin_output.py). To write them again:
``pytest e2e/compat/test_compat_mqadmin_x.py --against real --write-golden``.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import mqadmin_output as output
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import Driver
from harness.mqadmin_output import Normaliser

GOLDEN_PATH = Path(__file__).resolve().parent.parent / "compat" / "golden"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command; its golden file has its name. In ``words``, placeholders such as {broker} name parts of the scene.

    ``lines``: a command that never ends is interrupted after this number of lines.
    ``file``: the content of a file that it writes is compared instead of its output.
    ``code_only``: it is rejected, and DelayMQ's remark is longer than RocketMQ's: only the code is compared.
    """

    name: str
    words: str
    normaliser: Normaliser = output.plain
    lines: int | None = None
    file: str | None = None
    code_only: bool = False


def printed(
    driver: Driver,
    fresh: AbstractContextManager[Cluster],
    cases: Iterable[Case],
    fill: Callable[[Workbench], dict[str, str]],
) -> Iterator[dict[str, list[str]]]:
    """Yield the output of each command on a fresh cluster, which `fill` prepares; `fill` returns the scene."""
    with fresh as cluster:
        addresses: dict[str, Any] = {
            "namesrv_address": cluster.namesrv_address,
            "broker_address": cluster.broker_address,
        }
        with closing(Workbench(driver, **addresses)) as clients:
            yield play(clients, cases, fill(clients))


def make_topic(clients: Workbench, topic: str, queues: int) -> None:
    """Create a topic as an administrator would, and wait until clients can find it."""
    clients.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", str(queues), "-w", str(queues))
    clients.wait_for_route(topic, queues=queues)


def play(clients: Workbench, cases: Iterable[Case], scene: dict[str, str]) -> dict[str, list[str]]:
    """Run commands sequentially and return their normalised output: later ones can depend on earlier ones."""
    return {case.name: _run(clients, case, scene) for case in cases}


def _run(clients: Workbench, case: Case, scene: dict[str, str]) -> list[str]:
    arguments = [word.format_map(scene) for word in case.words.split()]
    fields = {} if case.lines is None else {"lines": case.lines}
    answer = clients.driver.call("mqadmin", arguments=[*arguments, "-n", clients.namesrv_address], **fields)
    # If a command fails, users see the exception's message; the stack trace is the client's own.
    complaints = [line for line in str(answer["errors"]).splitlines() if "CODE:" in line]
    printed = str(answer["output"])
    written = Path(case.file.format_map(scene)) if case.file is not None else None
    if written is not None and "success" in printed:
        printed = written.read_text()
    elif not printed.strip() and not complaints and str(answer["errors"]).strip():
        # Rejected by the command itself, not by the broker.
        complaints = [line for line in str(answer["errors"]).splitlines() if not line.strip().startswith("at ")][:4]
    if case.code_only:
        complaints = [line.partition(" DESC:")[0] for line in complaints]
    return case.normaliser(output.common(printed)) + output.common("\n".join(complaints))


def compare(
    request: pytest.FixtureRequest, against: str, folder: str, name: str, printed: dict[str, list[str]]
) -> None:
    """Assert that a command's output matches its golden file; with --write-golden, write the file first."""
    golden_path = GOLDEN_PATH / folder / f"{name}.txt"
    if request.config.getoption("--write-golden"):
        assert against == "real", "golden files are written with RocketMQ's broker: add --against real"
        golden_path.parent.mkdir(parents=True, exist_ok=True)
        golden_path.write_text("".join(f"{line}\n" for line in printed[name]))
    golden = golden_path.read_text().splitlines()
    difference = difflib.unified_diff(golden, printed[name], "of the real broker", "printed", lineterm="")
    assert printed[name] == golden, "\n".join(difference)


def files(folder: str) -> set[str]:
    """Return the names of a directory's golden files."""
    return {path.stem for path in (GOLDEN_PATH / folder).glob("*.txt")}
