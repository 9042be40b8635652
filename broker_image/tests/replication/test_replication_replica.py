"""A replica: histories, cuts, appends, and acknowledgements."""

from __future__ import annotations

import pytest
from delaymq.replication import NoteKind, Role
from delaymq.replication.effects import (
    AppendRaw,
    CutTo,
    DiscardLog,
    Failed,
    PersistEpochs,
    PersistNote,
    WriteRegister,
)
from delaymq.replication.events import (
    Appended,
    AppendFailed,
    CutDone,
    Flushed,
    Persisted,
    Received,
)
from delaymq.replication.history import EpochStart, History, consistent_end, trimmed
from delaymq.replication.messages import Accept, Ack, Follow, Frame, Position
from delaymq_testing.replication.driver import STORE, follower, live


# Epoch histories
@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "expected"),
    [
        ((), 0, (EpochStart(1, 0),), 500, 0),
        ((), 300, (EpochStart(1, 500),), 900, 300),
        ((EpochStart(1, 0),), 300, (EpochStart(1, 0),), 500, 300),
        ((EpochStart(1, 0),), 500, (EpochStart(1, 0), EpochStart(2, 400)), 900, 400),
        ((EpochStart(1, 0), EpochStart(2, 100)), 500, (EpochStart(1, 0), EpochStart(3, 200)), 900, 100),
        ((EpochStart(1, 0), EpochStart(2, 100)), 500, (EpochStart(1, 0), EpochStart(2, 150)), 900, 100),
        ((EpochStart(1, 0), EpochStart(2, 400)), 300, (EpochStart(1, 0), EpochStart(2, 400)), 900, 300),
    ],
)
def test_logs_are_consistent_up_to_the_end_of_their_last_common_epoch(
    own: History, own_end: int, other: History, other_end: int, expected: int
) -> None:
    assert consistent_end(own, own_end, other, other_end) == expected
    assert consistent_end(other, other_end, own, own_end) == expected


def test_epochs_after_the_end_of_a_log_are_forgotten() -> None:
    assert trimmed((EpochStart(1, 0), EpochStart(2, 100), EpochStart(3, 101)), 100) == (
        EpochStart(1, 0),
        EpochStart(2, 100),
    )


# Replicas
def test_attempts_to_begin_a_session_are_repeated_at_increasing_intervals() -> None:
    driver = follower()
    began = [0]
    for now_ms in range(100, 2_000, 100):
        driver.wait(100)
        if len(driver.sent(Follow)) > len(began):
            began.append(now_ms)
    assert began[:6] == [0, 100, 300, 700, 1_200, 1_700]


def test_replica_cuts_its_log_before_it_writes_the_epochs_and_acknowledges_afterwards() -> None:
    driver = follower(history=(EpochStart(1, 0),))
    session = driver.sent(Follow)[-1].session
    driver.effects.clear()
    driver.give(Received("a", Accept(2, session, STORE, (EpochStart(1, 0), EpochStart(2, 60)), 0, 200)))
    assert driver.effects == [CutTo(60)]
    driver.give(CutDone())
    assert not driver.sent(Ack)
    driver.give(Persisted(driver.take(PersistEpochs).number))
    assert driver.sent(Ack) == [Ack(2, session, 60, 60, 0)]


def test_replica_never_cuts_what_it_knows_to_be_confirmed() -> None:
    driver = follower(history=(EpochStart(1, 0),), confirmed=61)
    session = driver.sent(Follow)[-1].session
    driver.give(Received("a", Accept(2, session, STORE, (EpochStart(1, 0), EpochStart(2, 60)), 0, 200)))
    assert "agrees with this one up to 60 only, and 61 was confirmed" in driver.take(Failed).reason
    assert driver.member.role is Role.FAILED


def test_log_of_another_store_is_refused_and_not_cut() -> None:
    driver = follower(history=(EpochStart(1, 0),))
    session = driver.sent(Follow)[-1].session
    driver.give(Received("a", Accept(2, session, "other", (EpochStart(2, 0),), 0, 200)))
    assert not driver.has(CutTo)
    assert "store" in driver.take(Failed).reason


def test_empty_volume_adopts_the_store() -> None:
    driver = follower(end=0)
    session = driver.sent(Follow)[-1].session
    driver.give(Received("a", Accept(2, session, "other", (EpochStart(2, 0),), 0, 200)))
    assert driver.take(PersistEpochs).store_id == "other"


def test_replica_appends_what_continues_its_log_and_reports_gaps() -> None:
    driver = follower()
    session = live(driver)
    driver.give(Received("a", Frame(2, session, 100, b"x" * 20, 110, True)))
    assert driver.take(AppendRaw) == AppendRaw(100, b"x" * 20)
    driver.give(Appended(120))
    assert driver.member.log.confirmed == 110
    driver.effects.clear()
    driver.give(Received("a", Frame(2, session, 140, b"x" * 20, 110, True)))
    assert driver.sent(Ack) == [Ack(2, session, 120, 120, 140)]


def test_replica_that_knows_a_higher_epoch_acknowledges_no_lower_one() -> None:
    driver = follower()
    session = live(driver)
    driver.give(Received("c", Position(3, 1, 3, 100, None, False, "")))
    driver.effects.clear()
    driver.give(Received("a", Frame(2, session, 100, b"x" * 20, 110, True)))
    assert not driver.has(AppendRaw)
    assert not driver.sent(Ack)


def test_snapshots_state_nothing_beyond_confirmed_and_flushed() -> None:
    driver = follower()
    session = live(driver)
    driver.give(Received("a", Frame(2, session, 100, b"x" * 20, 120, True)), Appended(120))
    assert (driver.member.log.confirmed, driver.member.durable_confirmed) == (120, 100)
    driver.give(Flushed(120))
    assert driver.member.durable_confirmed == 120


# Logs whose oldest bytes were deleted
def test_empty_log_begins_at_the_oldest_byte_of_the_masters_and_has_nothing_before() -> None:
    driver = follower(end=0)
    session = driver.sent(Follow)[-1].session
    driver.give(Received("a", Accept(2, session, STORE, (EpochStart(1, 0), EpochStart(2, 60)), 40, 200)))
    driver.persist()
    assert driver.sent(Ack)[-1:] == [Ack(2, session, 40, 0, 0)]
    driver.give(Received("a", Frame(2, session, 40, b"x" * 20, 40, True)))
    assert driver.take(AppendRaw) == AppendRaw(40, b"x" * 20)
    assert driver.member.log.confirmed == 0
    driver.give(Appended(60))
    assert (driver.member.log.confirmed, driver.member.log.begin) == (40, 40)


def test_log_that_the_master_cannot_continue_is_discarded_after_a_note() -> None:
    driver = follower(history=(EpochStart(1, 0),))
    session = driver.sent(Follow)[-1].session
    driver.effects.clear()
    driver.give(Received("a", Accept(2, session, STORE, (EpochStart(1, 0), EpochStart(2, 400)), 120, 500)))
    note, discard = driver.effects
    assert isinstance(note, PersistNote)
    assert note.note is not None
    assert note.note.kind is NoteKind.EMPTY
    assert isinstance(discard, DiscardLog)
    assert "ends at 100, and that of the master a begins at 120" in discard.reason
    driver.effects.clear()
    driver.wait(20_000)
    assert not driver.sent(Follow)
    assert not driver.has(WriteRegister)


def test_incomplete_record_is_requested_again_in_the_next_session() -> None:
    driver = follower()
    session = live(driver)
    driver.give(Received("a", Frame(2, session, 100, b"x" * 20, 100, True)), Appended(110))
    driver.effects.clear()
    driver.give(Received("a", Frame(2, session, 120, b"x" * 5, 100, True)))
    assert driver.take(AppendRaw) == AppendRaw(120, b"x" * 5)
    driver.give(Appended(110))
    driver.wait(3_000)
    session = live(driver, end=200)
    assert driver.sent(Ack)[-1] == Ack(2, session, 110, 110, 0)


def test_failed_append_ends_the_session_and_the_next_one_continues_at_the_end() -> None:
    driver = follower()
    session = live(driver)
    driver.give(Received("a", Frame(2, session, 100, b"x" * 20, 100, True)))
    driver.give(Received("a", Frame(2, session, 120, b"x" * 20, 100, True)))
    driver.effects.clear()
    driver.give(AppendFailed(), AppendFailed())
    assert not driver.sent(Ack)
    driver.wait(1_000)
    session = live(driver)
    assert driver.sent(Ack)[-1] == Ack(2, session, 100, 100, 0)


def test_pause_after_failed_appends_doubles_until_an_append_succeeds() -> None:
    driver = follower()
    pauses = []
    for number in range(8):
        session = live(driver)
        driver.give(Received("a", Frame(2, session, 100, b"x" * 20, 100, True)))
        if number == 6:
            driver.give(Appended(100))
        began = driver.now_ms
        driver.effects.clear()
        driver.give(AppendFailed(), AppendFailed())
        while not driver.sent(Follow):
            driver.wait(100)
        pauses.append(driver.now_ms - began)
    assert pauses == [1_000, 2_000, 4_000, 8_000, 8_000, 8_000, 1_000, 2_000]
