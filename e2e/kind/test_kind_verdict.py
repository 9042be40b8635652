"""Tests of the judge: it detects lost, duplicated and early messages. They need no cluster."""

import pytest
from kind.verdict import Logged, Sent, Verdict, judge, longest_gap_s


def sent(key: str, *, ended_ms: int = 0, failure: str = "") -> Sent:
    return Sent(key=key, level=1, began_ms=0, ended_ms=ended_ms, failure=failure)


def logged(key: str, *copies_ms: int, due_ms: int = 100) -> Logged:
    return Logged(key=key, level=1, due_ms=due_ms, stored_ms=0, copies_ms=copies_ms)


def test_messages_delivered_once_after_their_due_time_are_clean_with_their_lateness() -> None:
    verdict = judge([sent("a"), sent("b")], [[logged("a", 103)], [logged("b", 110, due_ms=105)]])
    verdict.assert_clean()
    verdict.assert_no_send_failed()
    assert verdict.lateness_ms == (3, 5)
    assert verdict.lateness_of_due_after_ms(101) == [5]
    assert verdict.last_overdue_at_ms(100, 105) == 103
    assert verdict.last_overdue_at_ms(200, 300) is None


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (judge([sent("a"), sent("b")], [[logged("a", 103), logged("b")]]), "'lost': ('b',)"),
        (judge([sent("a"), sent("b")], [[logged("a", 103)]]), "'lost': ('b',)"),
        (judge([sent("a")], [[logged("a", 103, 104)]]), "'twice': ('a',)"),
        (judge([sent("a")], [[logged("a", 99)]]), "'early': ('a',)"),
        (judge([sent("a")], [[logged("a", 103), logged("x", 103)]]), "'sent by nobody': ('x',)"),
        (judge([sent("a", failure="refused")], [[]]), "nothing was acknowledged"),
    ],
)
def test_violation_is_reported_by_its_name(verdict: Verdict, said: str) -> None:
    with pytest.raises(AssertionError) as raised:
        verdict.assert_clean()
    assert said in str(raised.value)


def test_failed_send_is_not_lost_and_a_copy_in_another_log_is_counted_separately() -> None:
    verdict = judge(
        [sent("a"), sent("f", failure="timeout")], [[logged("a", 103), logged("f", 103)], [logged("a", 104)]]
    )
    verdict.assert_clean()
    assert verdict.stored_again == 1
    with pytest.raises(AssertionError, match="1 of 2 sends failed"):
        verdict.assert_no_send_failed()


def test_longest_gap_is_measured_between_successful_sends() -> None:
    sends = [sent("a", ended_ms=1000), sent("b", ended_ms=1500, failure="refused"), sent("c", ended_ms=3250)]
    assert longest_gap_s(sends) == 2.25
    assert longest_gap_s([]) == 0
