"""Profiles of the benchmark: functions of a flame graph, selection of processes, and errors."""

import sys
from pathlib import Path

import pytest
from profiling import __main__ as command
from profiling import flame_graph, sampler
from profiling.errors import ProfileError
from profiling.sampler import Choices
from rows import LATENCY_P50, Sample, rate_row
from scenarios import ASYNCIO_LOAD_PATH

NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:fg="http://github.com/jonhoo/inferno"'
LOCK, LOOP = "PyThread_acquire_lock_timed (libpython3.11.so.1.0)", "epoll_pwait (libc.so.6)"
WORKER = "_worker (concurrent/futures/thread.py:69)"
SEND, APPEND = "send (delaymq/send.py:1)", "append (delaymq/log.py:2)"


def flame(path: Path, *frames: tuple[str, int, int, int]) -> flame_graph.Functions:
    """Return the functions of a graph with these frames: name, depth, first sample and number of samples."""
    boxes = "".join(
        f"<g><title>{name.replace('<', '&lt;')} ({samples:,} samples, 1.00%)</title>"
        f'<rect x="1.5%" y="{52 + 16 * depth}" width="2%" fg:x="{start}" fg:w="{samples}"/><text>…</text></g>'
        for name, depth, start, samples in frames
    )
    path.write_text(f'<svg {NAMESPACES}><g/><svg id="frames" total_samples="9">{boxes}</svg></svg>')
    return flame_graph.functions(flame_graph.read(path))


def test_own_and_total_samples_are_counted_for_each_function(tmp_path: Path) -> None:
    found = flame(
        tmp_path / "x.svg",
        (APPEND, 2, 10, 30), (SEND, 1, 0, 50), (APPEND, 1, 50, 7), ("all", 0, 0, 1100), ("<module> (a:1)", 1, 57, 1043),
    )  # fmt: skip
    assert (found.samples, found.waiting) == (1100, 0)
    assert found.own == {SEND: 20, APPEND: 37, "<module> (a:1)": 1043}
    assert found.total == {SEND: 50, APPEND: 37, "<module> (a:1)": 1043}


def test_recursive_function_is_counted_once(tmp_path: Path) -> None:
    found = flame(tmp_path / "x.svg", ("all", 0, 0, 10), (SEND, 1, 0, 10), (APPEND, 2, 0, 9), (SEND, 3, 0, 8))
    assert found.total == {SEND: 10, APPEND: 9}
    assert found.own == {SEND: 9, APPEND: 1}


def test_waiting_is_not_counted(tmp_path: Path) -> None:
    found = flame(
        tmp_path / "x.svg",
        ("all", 0, 0, 100),
        (SEND, 1, 0, 40), (LOOP, 2, 0, 10), ("0x7f (libc.so.6)", 3, 0, 10), (APPEND, 2, 10, 30),
        (WORKER, 1, 40, 60), (LOCK, 2, 40, 20), ("flush (delaymq/log.py:9)", 2, 60, 5),
    )  # fmt: skip
    assert (found.samples, found.waiting) == (35, 65)
    assert found.own == {APPEND: 30, "flush (delaymq/log.py:9)": 5}
    assert found.total == {SEND: 30, APPEND: 30, WORKER: 5, "flush (delaymq/log.py:9)": 5}


def test_summary_names_the_functions_with_the_most_samples_first(tmp_path: Path) -> None:
    found = flame(tmp_path / "x.svg", ("all", 0, 0, 200), (SEND, 1, 0, 100), (APPEND, 2, 0, 60), (LOOP, 1, 100, 100))
    lines = flame_graph.summary(found)
    assert lines[0] == "100 samples; 100 more, in which a thread waited, are not counted"
    assert lines[5:7] == [f"   60.0     60.0  {APPEND}", f"   40.0    100.0  {SEND}"]
    assert lines[-1] == f"   60.0     60.0  {APPEND}"  # the total of `send` contains everything


def test_summary_without_samples_is_empty(tmp_path: Path) -> None:
    found = flame(tmp_path / "x.svg", ("all", 0, 0, 5), (LOOP, 1, 0, 5))
    assert flame_graph.summary(found)[0].startswith("0 samples; 5 more")


@pytest.mark.parametrize(
    "text", ["", "<svg", "<svg/>", f'<svg {NAMESPACES}><svg id="frames"/></svg>',
             f'<svg {NAMESPACES}><svg id="frames"><g><title>all</title><rect y="1"/></g></svg></svg>']
)  # fmt: skip
def test_file_of_another_form_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.svg").write_text(text)
    with pytest.raises(ProfileError, match=r"x\.svg is not a flame graph of the pinned version of py-spy"):
        flame_graph.read(tmp_path / "x.svg")


def test_broker_is_profiled_except_for_the_rows_of_the_client() -> None:
    broker = ["/venv/bin/python", "-m", "delaymq", "standalone", "--host", "127.0.0.1"]
    client = ["/venv/bin/python", str(ASYNCIO_LOAD_PATH)]
    assert command.is_profiled("sync8", broker)
    assert not command.is_profiled("sync8", client)
    assert command.is_profiled("client", client)
    assert not command.is_profiled("client", broker)
    assert not command.is_profiled("sync8", ["java", "-cp", "x", "delaymq.load.Main"])
    assert not command.is_profiled("sync8", [])


def test_profile_is_named_after_the_row_and_the_size() -> None:
    assert command.name_of([Sample(rate_row("sync8", "sync send, 8 threads", 100), 1.0)]) == "sync8_100"
    assert command.name_of([Sample(LATENCY_P50, 1.0)]) == "latency"


def test_command_line_of_the_profiler_follows_the_choices() -> None:
    words = sampler.sampling_command(7, Path("x.svg"), Choices(rate=50))
    assert words[0] == str(Path(sys.executable).with_name("py-spy"))
    assert words[words.index("--rate") + 1] == "50"
    assert "--native" in words
    assert "--native" not in sampler.sampling_command(7, Path("x.svg"), Choices(native=False))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["idle"], "'idle' is not a row group with a profile: use one of sync1, sync8"),
        (["sync8,batch"], "'sync8,batch' is not a row group with a profile"),
        (["sync8", "--rate", "0"], "--rate is 0: use 1 to 1000 samples per second"),
        (["sync8", "--sizes", "x"], "--sizes is x: use numbers"),
        ([], "the following arguments are required: GROUP"),
    ],
)
def test_invalid_arguments_are_errors(capsys: pytest.CaptureFixture[str], words: list[str], problem: str) -> None:
    with pytest.raises(SystemExit) as stop:
        command.main(words)
    assert stop.value.code == 2
    assert problem in capsys.readouterr().err


def test_ended_process_has_no_command_line() -> None:
    assert sampler.command_line(1 << 30) == []
    assert sampler.command_line(0) == []
