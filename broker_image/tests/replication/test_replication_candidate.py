"""Takeovers, notes of members that are no candidates, and orders."""

from __future__ import annotations

from delaymq.replication import (
    Acknowledge,
    Failover,
    Note,
    NoteKind,
    Record,
    Role,
)
from delaymq.replication.effects import (
    HoldAppends,
    PersistEpochs,
    PersistNote,
    ReadRegister,
    ReadyToDetach,
    Refused,
    ReportLoss,
    SetConfirmed,
    StopBeingMaster,
    WriteRegister,
)
from delaymq.replication.events import (
    Able,
    Appended,
    ConnectionLost,
    Detach,
    Persisted,
    PrepareDetach,
    Promote,
    Received,
    RegisterFailed,
    RegisterRead,
    SwitchOver,
)
from delaymq.replication.history import EpochStart
from delaymq.replication.messages import Accept, Ack, Ask, Begun, Follow, Frame, HandOver, Position
from delaymq_testing.replication.driver import (
    LOST,
    STORE,
    SYNC,
    Driver,
    abandoned,
    connect,
    follower,
    live,
    master,
    record,
)


# Candidates
def _renew(driver: Driver, times: int, content: Record) -> None:
    for version in range(10, 10 + times):
        driver.read(str(version), content)


def test_replica_takes_over_when_the_connection_is_lost_and_a_renewal_is_missing() -> None:
    driver = follower()
    live(driver)
    driver.effects.clear()
    driver.wait(5_000)
    content = record(2, "a", "a", "b")
    _renew(driver, 8, content)
    assert not driver.has(WriteRegister), "the master renews its lease"
    for _ in range(7):
        driver.read("20", content)
        if driver.has(WriteRegister):
            break
    assert driver.take(WriteRegister).record == Record(3, "b", 7, frozenset({"a", "b"}))


def test_replica_that_acknowledges_the_master_is_no_candidate() -> None:
    driver = follower()
    session = live(driver)
    for _ in range(100):
        driver.wait(200)
        driver.give(Received("a", Frame(2, session, 100, b"", 100, True)))
        for effect in list(driver.effects):
            if isinstance(effect, ReadRegister):
                driver.give(RegisterRead(effect.request, "1", record(2, "a", "a", "b")))
        assert not driver.has(WriteRegister)
        driver.effects.clear()


def test_member_outside_of_the_set_is_no_candidate() -> None:
    assert not abandoned(Driver("b"), record(2, "a", "a", "c"), 60_000)


def test_member_with_a_longer_log_goes_first() -> None:
    content = record(2, "a", "a", "b", "c")
    longer = Position(2, 0, 2, 300, None, False, "")
    assert not abandoned(Driver("b"), content, 2_400, longer)
    assert abandoned(Driver("b"), content, 2_400, longer._replace(last_epoch=0, end=90))
    assert abandoned(Driver("b"), content, 6_000, longer), "the other one does not take over"


def test_master_that_another_member_can_reach_is_not_replaced() -> None:
    driver = Driver("b")
    assert not abandoned(driver, record(2, "c", "c", "b"), 20_000, Position(2, 0, 2, 300, None, True, ""))


def test_candidate_waits_for_the_end_of_the_lease_if_sends_do_not_wait_for_replicas() -> None:
    settings = SYNC._replace(waits_for_replicas=False)
    assert not abandoned(Driver("b", settings), record(2, "a", "a", "b"), 9_900)
    assert abandoned(Driver("b", settings), record(2, "a", "a", "b"), 12_000)


def test_manual_failover_never_replaces_another_member() -> None:
    settings = SYNC._replace(failover=Failover.MANUAL)
    assert not abandoned(Driver("b", settings), record(2, "a", "a", "b"), 60_000)
    assert abandoned(Driver("a", settings), record(2, "a", "a", "b"), 2_000)


def test_clock_that_is_set_back_stops_no_timer() -> None:
    driver = Driver("b")
    content = record(2, "a", "a", "b")
    abandoned(driver, content, 1_000)
    driver.now_ms -= 3_600_000
    assert abandoned(driver, content, 4_000)


# Notes


def test_member_that_may_have_lost_bytes_records_it_and_is_no_candidate() -> None:
    driver = Driver("b", note=LOST)
    assert driver.take(PersistNote).note is not None
    assert not abandoned(driver, record(2, "a", "a", "b", "c"), 60_000, Position(2, 0, 2, 300, None, False, ""))


def test_note_is_cleared_when_the_member_has_the_start_of_the_epoch_and_all_that_is_confirmed() -> None:
    driver = follower(end=80, note=LOST)
    session = live(driver, end=200)
    driver.give(Received("a", Frame(2, session, 80, b"x" * 10, 50, True)), Appended(90))
    assert driver.member.log.note is not None, "the epoch starts at 100"
    driver.give(Received("a", Frame(2, session, 90, b"x" * 20, 120, True)), Appended(110))
    assert driver.member.log.note is not None, "120 is confirmed"
    driver.give(Received("a", Frame(2, session, 110, b"x" * 10, 120, False)), Appended(120))
    assert driver.member.log.note is not None, "the master does not wait for this member"
    driver.give(Received("a", Frame(2, session, 120, b"", 120, True)))
    assert driver.member.log.note is None
    assert driver.take(PersistNote).note is None


def test_longest_log_is_taken_when_all_members_lost_bytes_and_all_answered() -> None:
    content = record(2, "a", "b", "c")
    shorter = Position(2, 0, 0, 90, LOST._replace(serial=1), False, "")
    assert not abandoned(Driver("b", note=LOST), content, 30_000), "c does not answer"
    assert not abandoned(Driver("b", note=LOST), content, 30_000, shorter._replace(end=101))
    assert not abandoned(Driver("b", note=LOST), content, 30_000, shorter._replace(note=None))
    manual = SYNC._replace(failover=Failover.MANUAL)
    assert not abandoned(Driver("b", manual, note=LOST), content, 30_000, shorter)
    driver = Driver("b", note=LOST)
    assert abandoned(driver, content, 30_000, shorter)
    assert driver.take(ReportLoss) == ReportLoss(3, 100, is_ordered=False)


def test_new_volume_begins_the_first_epoch_and_no_later_one() -> None:
    empty = Note(NoteKind.EMPTY, 0, 0)
    assert abandoned(Driver(end=0, note=empty), record(0, "", "a"), 2_000)
    assert not abandoned(Driver(end=0, note=empty), record(3, "a", "a"), 60_000)


# Orders
def test_switchover_holds_appends_until_the_target_has_everything() -> None:
    driver = master("b")
    connect(driver, "b", 100)
    driver.give(Appended(180), SwitchOver("b", 2))
    assert driver.has(HoldAppends)
    assert not driver.sent(HandOver)
    driver.give(Received("b", Ack(2, 1, 180, 180, 0)))
    assert driver.sent(HandOver) == [HandOver(2, 1, 180)]
    driver.effects.clear()
    driver.wait(3_100)
    assert driver.take(HoldAppends) == HoldAppends(False)


def test_master_that_handed_over_does_not_store_what_it_held() -> None:
    driver = master("b")
    connect(driver, "b", 100)
    driver.give(SwitchOver("b", 2))
    assert driver.sent(HandOver) == [HandOver(2, 1, 100)]
    driver.effects.clear()
    driver.give(Received("b", Begun(3)))
    assert driver.has(StopBeingMaster)
    assert not driver.has(HoldAppends), "held sends would be stored behind the end that the target has"


def test_target_of_a_switchover_takes_over_without_delay() -> None:
    driver = follower()
    session = live(driver)
    driver.effects.clear()
    driver.give(Received("a", HandOver(2, session, 100)))
    driver.give(RegisterRead(driver.take(ReadRegister).request, "2", record(2, "a", "a", "b")))
    assert driver.take(WriteRegister).record == Record(3, "b", 7, frozenset({"a", "b"}))


def test_target_that_lacks_bytes_does_not_take_over() -> None:
    driver = follower()
    session = live(driver)
    driver.effects.clear()
    driver.give(Received("a", HandOver(2, session, 120)))
    assert not driver.has(ReadRegister)


def test_unclean_promotion_names_the_epoch_and_states_the_loss() -> None:
    driver = follower()
    driver.effects.clear()
    driver.give(Promote(1))
    assert driver.take(Refused).reason == "the epoch is 2, not 1"
    driver.give(Promote(2))
    driver.give(RegisterRead(driver.take(ReadRegister).request, "1", record(2, "a", "a")))
    assert driver.effects[-2] == ReportLoss(3, 100, is_ordered=True)
    assert driver.take(WriteRegister).record.in_sync == {"b"}


def _noted(driver: Driver) -> Note:
    driver.give(PrepareDetach(2))
    driver.give(Persisted(driver.take(PersistNote).number))
    return driver.take(ReadyToDetach).note


def test_master_stops_waiting_for_a_member_that_has_recorded_its_note() -> None:
    driver = master("b", "c")
    connect(driver, "c", 100)
    driver.give(Detach("b", 2, Note(NoteKind.DETACHED, 1, 5)))
    assert "repeat both orders" in driver.take(Refused).reason
    driver.give(Detach("b", 2, Note(NoteKind.DETACHED, 2, 5)))
    assert driver.take(SetConfirmed).offset == 100


def test_note_of_a_member_that_the_master_counts_again_is_no_proof() -> None:
    driver = master("b")
    connect(driver, "b", 100, note=5)
    driver.give(Detach("b", 2, Note(NoteKind.DETACHED, 2, 5)))
    assert "repeat both orders" in driver.take(Refused).reason


def test_note_of_a_process_before_the_one_that_the_master_counted_last_is_no_proof() -> None:
    former, newer = (1 << 32) + 9, (2 << 32) + 9
    driver = master("b")
    connect(driver, "b", 100, session=(1 << 32) + 1)
    driver.give(ConnectionLost("b"))
    connect(driver, "b", 90, session=(2 << 32) + 1)  # with another volume
    driver.effects.clear()
    driver.give(Detach("b", 2, Note(NoteKind.DETACHED, 2, former)))
    assert "repeat both orders" in driver.take(Refused).reason
    driver.give(Detach("b", 2, Note(NoteKind.DETACHED, 2, newer)))
    assert not driver.has(Refused)


def test_position_of_a_member_is_what_it_acknowledges() -> None:
    for acknowledge, end in ((Acknowledge.APPENDED, 180), (Acknowledge.FLUSHED, 100)):
        history = (EpochStart(1, 0), EpochStart(2, 150))
        driver = Driver("b", SYNC._replace(acknowledge=acknowledge), history=history[:1])
        driver.member.log.end, driver.member.log.history = 180, history
        driver.give(Received("c", Ask(2, 7)))
        position = driver.sent(Position)[-1]
        assert (position.last_epoch, position.end) == (2 if end == 180 else 1, end)


def test_empty_log_of_a_new_master_begins_at_0() -> None:
    driver = follower(end=0)
    session = driver.sent(Follow)[-1].session
    driver.give(Received("a", Accept(2, session, STORE, (EpochStart(2, 300),), 300, 300)))
    driver.persist()
    assert driver.member.log.begin == 300
    driver.give(Promote(2))
    driver.give(RegisterRead(driver.take(ReadRegister).request, "1", record(2, "a", "a")))
    driver.write("2")
    driver.persist()
    assert driver.member.role is Role.MASTER
    assert driver.member.log.begin == 0


def test_note_is_on_disk_before_it_is_a_proof_and_frames_of_the_former_session_do_not_clear_it() -> None:
    driver = follower()
    session = live(driver)
    driver.effects.clear()
    note = _noted(driver)
    driver.give(Received("a", Frame(2, session, 100, b"", 100, True)))
    assert driver.member.log.note == note
    driver.wait(600)
    assert driver.sent(Follow)[-1].note == note.serial


def test_claim_that_takes_place_after_a_note_was_recorded_is_not_acted_upon() -> None:
    driver = Driver("b")
    assert abandoned(driver, record(2, "a", "a", "b"), 6_000)
    write = driver.take(WriteRegister)
    driver.give(RegisterFailed(write.request))
    _noted(driver)
    driver.read("9", write.record)
    assert not driver.has(PersistEpochs)
    assert driver.member.role is Role.FOLLOWER


def test_lost_connection_ends_the_session_of_a_replica_and_keeps_its_acknowledgements() -> None:
    driver = master("b")
    connect(driver, "b", 60)
    driver.give(ConnectionLost("b"), Received("b", Ack(2, 1, 100, 100, 0)))
    assert driver.member.log.confirmed == 60


def test_member_with_a_full_disk_leaves_the_takeover_to_others_for_a_while() -> None:
    driver = follower()
    driver.give(Able(False))
    assert not abandoned(driver, record(2, "a", "a", "b"), 5_000)
    assert abandoned(driver, record(2, "a", "a", "b"), 10_000)
    driver = follower()
    driver.give(Able(False), Able(True))
    assert abandoned(driver, record(2, "a", "a", "b"), 5_000)


def test_former_master_leaves_the_takeover_to_replicas_after_a_crash() -> None:
    for was_killed in (False, True):
        driver = Driver("a", was_killed=was_killed)
        content = record(2, "a", "a", "b")
        assert abandoned(driver, content, 2_000) != was_killed
        if was_killed:
            assert abandoned(driver, content, 10_000)
    assert abandoned(Driver("a", was_killed=True), record(2, "a", "a"), 2_000)
