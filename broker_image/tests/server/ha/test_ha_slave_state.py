"""Verdicts about the reports of plain slaves."""

import pytest
from delaymq.protocol.ha import encode_report
from delaymq.server.ha.slave_state import SlaveState

BEGIN, END = 1_000, 9_000


def started(offset: int) -> SlaveState:
    state = SlaveState(0)
    assert state.receive(encode_report(offset), BEGIN, END, 0) == ""
    return state


def test_slave_with_an_empty_log_begins_at_the_oldest_byte() -> None:
    state = started(0)
    assert (state.sent, state.acknowledged) == (BEGIN, BEGIN)
    assert state.receive(encode_report(0), BEGIN, END, 1) == ""  # its heartbeat, until it has bytes
    state.note_sent(1_500, 1, 1)
    assert state.receive(encode_report(1_400), BEGIN, END, 1) == ""
    assert state.acknowledged == 1_400
    assert "it reports offset 0" in state.receive(encode_report(0), BEGIN, END, 1)


@pytest.mark.parametrize("offset", [BEGIN, 5_000, END])
def test_slave_continues_at_the_end_of_its_log(offset: int) -> None:
    assert started(offset).sent == offset


@pytest.mark.parametrize(
    ("offset", "problem"),
    [
        (END + 1, "beyond the end 9000"),
        (2**63 - 1, "beyond the end"),
        (BEGIN - 1, "this one begins at 1000: empty the slave's store"),
        (-1, "this one begins at 1000"),
    ],
)
def test_slave_with_another_log_is_refused(offset: int, problem: str) -> None:
    state = SlaveState(0)
    assert problem in state.receive(encode_report(offset), BEGIN, END, 0)
    assert not state.is_started


@pytest.mark.parametrize("forged", [2_001, END, END + 1, 2**63 - 1, 1_499, -5])
def test_report_of_bytes_that_were_not_sent_is_refused(forged: int) -> None:
    state = started(1_500)
    state.note_sent(2_000, 1, 1)
    assert f"it reports offset {forged}" in state.receive(encode_report(forged), BEGIN, END, 1)
    assert state.acknowledged == 1_500


def test_flood_of_reports_is_refused() -> None:
    state = started(2_000)
    assert state.receive(encode_report(2_000) * 900, BEGIN, END, 1) == ""
    assert "reports for 0 ranges" in state.receive(encode_report(2_000) * 300, BEGIN, END, 1)


def test_reports_for_many_ranges_and_heartbeats_are_no_flood() -> None:
    state = started(2_000)
    state.note_sent(5_000, 5_000, 1)
    assert state.receive(encode_report(2_000) * 5_900, BEGIN, END, 1) == ""
    assert state.receive(encode_report(2_000) * 9_000, BEGIN, END, 101) == ""


def test_silent_slave_is_overdue() -> None:
    state = SlaveState(0)
    assert state.overdue(20, 20) == ""
    assert state.overdue(20, 21) == "no report for 21 s"
    state.receive(encode_report(0)[:7], BEGIN, END, 20)
    assert state.overdue(20, 21) != ""
    state.receive(encode_report(0)[7:], BEGIN, END, 20)
    assert state.overdue(20, 40) == ""


def test_slave_that_only_reports_is_overdue_if_it_lacks_bytes() -> None:
    state = started(2_000)
    state.receive(encode_report(2_000), BEGIN, END, 1_000)
    assert state.overdue(20, 1_000) == ""  # it has everything
    state.note_sent(3_000, 1, 1_000)
    state.receive(encode_report(2_000), BEGIN, END, 1_060)
    assert state.overdue(20, 1_060) == ""
    assert "bytes from offset 2000 on not acknowledged" in state.overdue(20, 1_061)
    state.receive(encode_report(2_001), BEGIN, END, 1_061)
    assert state.overdue(20, 1_061) == ""
