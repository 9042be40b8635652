"""docs/compatibility.md names every command of RocketMQ's tools, and the calls of the dashboard and the exporter."""

import re
from pathlib import Path

from compat.admin_calls import CALLS
from harness.driver import Driver

FOLDER = Path(__file__).parent
DOCUMENT = FOLDER.parents[1] / "docs" / "compatibility.md"
ROW = re.compile(r"^\| `(\w+)` \| (works|not applicable) \| (.+\.) \| `(test_compat_\w+)` \|$", re.MULTILINE)


def test_document_lists_every_command_of_the_tools(driver: Driver) -> None:
    documented = [found[0] for found in ROW.findall(DOCUMENT.read_text())]
    assert sorted(documented) == sorted(set(documented))
    assert set(documented) == set(driver.call("mqadmin.names"))


def test_each_command_is_tested_by_the_module_named_in_the_document() -> None:
    for command, _, what, module in ROW.findall(DOCUMENT.read_text()):
        names = {command, *re.findall(r"also called `(\w+)`", what)}
        text = (FOLDER / f"{module}.py").read_text()
        assert any(name in text for name in names), f"{command} is not in {module}"


def test_document_lists_calls_of_dashboard_and_exporter() -> None:
    text = DOCUMENT.read_text()
    for tool in ("dashboard", "exporter"):
        (listed,) = re.findall(rf"^- {tool.title()}: ((?:.|\n  )+)", text, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", listed)) == {call.method for call in CALLS if tool in call.by}
