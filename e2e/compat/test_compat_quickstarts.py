"""README and quick starts, executed as printed and twice in succession, against brokers with default settings.

Their default ports are free in this network namespace.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from compat.page_run import PageRun, pattern_of, steps_of
from harness import java
from harness.brokers import HOME_PATH

# The pages start DelayMQ brokers themselves, whatever --against selects.
pytestmark = pytest.mark.ours_only

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
STORE = "/tmp/delaymq"
PROGRAMS = Path(sys.executable).parent
RECEIVE_LIMIT_S = 60.0


@pytest.fixture
def page_run(tmp_path: Path) -> Iterator[PageRun]:
    run = PageRun(tmp_path / "reader", [tmp_path / "bin", PROGRAMS], {STORE: str(tmp_path / "store")})
    try:
        yield run
    finally:
        run.close()


def test_printed_output_is_compared_except_for_times_ids_and_queues() -> None:
    shown = "sent 7F000001461A0FF4DAD069F1FCF50000 at 13:00:01 in 0.2 s\n"
    printed = "sent 7F000001461A0FF4DAD069F1FCF50001 at 14:11:59 in 12.8 s"
    assert pattern_of(shown).fullmatch(printed)
    assert not pattern_of(shown).fullmatch(printed.replace("sent", "lost"))
    assert not pattern_of(shown).fullmatch(printed + "\nand more")
    assert not pattern_of("5 pending").fullmatch("6 pending")
    assert pattern_of("5 pending", again=True).fullmatch("6 pending")
    level, delivered = "5  1m  1  13:49:10  0/1", "5  1m  1  05:50:44  1 ms  1 ms  2 ms  1/2"
    assert pattern_of(level, again=True).fullmatch(delivered)
    assert pattern_of(level, again=True).fullmatch(level)
    assert not pattern_of(level).fullmatch(delivered)


def test_readme_commands_run_as_printed(page_run: PageRun) -> None:
    page_run.places = {**page_run.places, "make setup": ":", ".venv/bin/": "", "make demo": ":"}
    page_run.follow_twice(ROOT / "README.md")
    assert sum("delaymq send Orders" in each for each in page_run.ran) == 2
    deadline = time.monotonic() + RECEIVE_LIMIT_S
    while page_run.printed_by("receive").count("hello later") < 2:
        assert time.monotonic() < deadline, page_run.printed_by("receive")
        time.sleep(0.05)


def test_python_page_runs_as_printed(page_run: PageRun) -> None:
    page_run.follow_twice(DOCS / "quickstart-python.md")
    saved = {step.saved_as for step in steps_of(DOCS / "quickstart-python.md") if step.language == "python"}
    assert saved == {"send.py", "receive.py", "ordered.py", "pay.py", "batch.py", "poll.py"}
    commands = "".join(page_run.ran)
    assert all(f"python {name}" in commands for name in saved if name)


def test_page_for_rocketmq_users_runs_as_printed(page_run: PageRun, tmp_path: Path) -> None:
    _put_rocketmq_there(page_run, tmp_path / "bin")
    page_run.follow_twice(DOCS / "quickstart-rocketmq.md")
    commands = "".join(page_run.ran)
    assert "Later.java" in commands
    assert "mqadmin topicStatus" in commands


def test_page_on_distant_messages_runs_as_printed(page_run: PageRun, tmp_path: Path) -> None:
    _put_rocketmq_there(page_run, tmp_path / "bin")
    page_run.follow_twice(DOCS / "schedule-far-ahead.md")
    commands = "".join(page_run.ran)
    programs = ("reminder.py", "Reminder.java", "campaign.py", "Campaign.java", "report.py", "Report.java")
    for part in ("delaymq delay cancel", "delaymq delay groups", "curl", *programs):
        assert commands.count(part) >= 2, part


def _put_rocketmq_there(run: PageRun, programs: Path) -> None:
    """Provide the reader's environment: client libraries, as Maven copies them to lib, and RocketMQ's mqadmin."""
    run.folder.mkdir()
    (run.folder / "lib").mkdir()
    for jar in java.libraries("client").iterdir():
        # The tools include a logger, which the client alone does not have.
        if not jar.name.startswith(("logback", "slf4j")):
            (run.folder / "lib" / jar.name).symlink_to(jar)
    programs.mkdir()
    words = java.command(java.class_path("client"), MQADMIN, options=[f"-Drocketmq.home.dir={HOME_PATH}"])
    mqadmin = programs / "mqadmin"
    mqadmin.write_text("#!/bin/bash\nexec " + " ".join(f"'{word}'" for word in words) + ' "$@" 2>/dev/null\n')
    mqadmin.chmod(0o755)
