"""A master: confirmed offset, in-sync set, lease, and responses to sends."""

from __future__ import annotations

from delaymq.replication import (
    Acknowledge,
    Failover,
    Record,
    Role,
    SendAnswer,
    Settings,
)
from delaymq.replication.effects import (
    BecomeMaster,
    Disconnect,
    HoldAppends,
    PersistEpochs,
    ReadRegister,
    Send,
    SendLog,
    SetConfirmed,
    StopBeingMaster,
    WriteRegister,
)
from delaymq.replication.events import (
    Able,
    Appended,
    Flushed,
    Persisted,
    Received,
    RegisterConflict,
    RegisterFailed,
    RegisterRead,
)
from delaymq.replication.history import EpochStart
from delaymq.replication.messages import Ack, Ask, HandOver, Position
from delaymq_testing.replication.driver import SYNC, Driver, connect, master, record


# Masters
def test_member_alone_in_the_set_takes_over_and_begins_when_its_epoch_is_on_disk() -> None:
    driver = Driver(history=(EpochStart(1, 40),))
    driver.read("1", record(1, "a", "a"))
    assert driver.write("2") == Record(2, "a", 7, frozenset({"a"}))
    assert not driver.has(BecomeMaster)
    epochs = driver.take(PersistEpochs)
    assert epochs.history == (EpochStart(1, 40), EpochStart(2, 100))
    driver.give(Persisted(epochs.number))
    assert driver.take(BecomeMaster) == BecomeMaster(2, 100)


def test_restarted_master_does_not_continue_its_epoch() -> None:
    driver = Driver(history=(EpochStart(4, 0),))
    driver.read("1", record(4, "a", "a", incarnation=6))
    assert driver.take(WriteRegister).record.epoch == 5


def test_confirmed_is_what_all_members_of_the_set_acknowledged_in_this_epoch() -> None:
    driver = master("b", "c")
    driver.give(Appended(180))
    connect(driver, "b", 150)
    assert driver.member.log.confirmed == 0
    connect(driver, "c", 120)
    assert driver.take(SetConfirmed).offset == 120
    driver.give(Received("c", Ack(2, 1, 180, 180, 0)))
    assert driver.take(SetConfirmed).offset == 150


def test_members_acknowledge_flushed_bytes_only_if_the_group_requires_it() -> None:
    driver = master("b", settings=SYNC._replace(acknowledge=Acknowledge.FLUSHED))
    driver.give(Appended(180))
    connect(driver, "b", 180)
    assert driver.take(SetConfirmed).offset == 100
    driver.give(Flushed(180))
    assert driver.take(SetConfirmed).offset == 180


def test_both_sets_count_while_the_outcome_of_a_write_is_unknown() -> None:
    driver = master()
    connect(driver, "b", 100)
    driver.wait(100)
    write = driver.take(WriteRegister)
    assert write.record.in_sync == {"a", "b"}
    driver.give(RegisterFailed(write.request), Appended(180))
    assert driver.member.log.confirmed == 100
    driver.wait(600)
    driver.give(RegisterRead(driver.take(ReadRegister).request, "2", write.record._replace(in_sync=frozenset("a"))))
    assert driver.member.log.confirmed == 100, "the write may still take place"
    driver.give(RegisterConflict(driver.take(WriteRegister).request))
    driver.wait(600)
    driver.give(RegisterRead(driver.take(ReadRegister).request, "9", write.record._replace(in_sync=frozenset("a"))))
    assert driver.member.log.confirmed == 180


def test_silent_member_leaves_the_set_by_a_write_only() -> None:
    driver = master("b")
    connect(driver, "b", 100)
    driver.give(Appended(180))
    driver.wait(1_500)
    assert driver.write("3").in_sync == {"a", "b"}, "a renewal"
    driver.wait(600)
    assert driver.member.log.confirmed == 100
    assert driver.write("4").in_sync == {"a"}
    assert driver.member.log.confirmed == 180


def test_member_joins_when_it_has_the_start_of_the_epoch() -> None:
    driver = master()
    connect(driver, "b", 99)
    driver.wait(300)
    assert not driver.has(WriteRegister)
    driver.give(Received("b", Ack(2, 1, 100, 100, 0)))
    assert driver.write("3").in_sync == {"a", "b"}


def test_report_beyond_the_end_of_the_log_closes_the_connection() -> None:
    driver = master("b")
    connect(driver, "b", 50)
    driver.give(Received("b", Ack(2, 1, 101, 101, 0)))
    assert driver.take(Disconnect).member == "b"
    driver.give(Appended(180), Received("b", Ack(2, 1, 180, 180, 0)))
    assert driver.member.log.confirmed == 50


def test_acknowledgements_of_other_sessions_and_epochs_do_not_count() -> None:
    driver = master("b")
    connect(driver, "b", 50, session=2)
    driver.give(Received("b", Ack(2, 1, 90, 90, 0)), Received("b", Ack(1, 2, 90, 90, 0)))
    assert driver.member.log.confirmed == 50


def test_missing_bytes_are_sent_again() -> None:
    driver = master("b")
    connect(driver, "b", 100)
    driver.give(Appended(180))
    assert driver.take(SendLog) == SendLog("b", 2, 1, 100, 180, 100, True)
    driver.give(Received("b", Ack(2, 1, 100, 100, 180)))
    assert driver.take(SendLog).start == 100


def test_missing_frame_is_sent_alone_and_once_although_all_frames_behind_it_report_it() -> None:
    driver = master("b", settings=Settings(batch_bytes=100, window_bytes=1_600))
    connect(driver, "b", 100)
    driver.give(Appended(5_000))
    assert driver.take(SendLog).end == 1_700
    driver.give(Received("b", Ack(2, 1, 200, 200, 100)))
    driver.effects.clear()
    for start in range(300, 1_700, 100):  # the Frame from 200 on is missing
        driver.give(Received("b", Ack(2, 1, 200, 200, start)))
    assert _sent(driver) == [(200, 300)]
    driver.give(Received("b", Ack(2, 1, 300, 300, 200)))
    assert _sent(driver) == [(300, 400), (400, 500)]
    driver.give(Received("b", Ack(2, 1, 200, 200, 1_600)))
    assert not _sent(driver), "an Ack that was overtaken"
    driver.give(Received("b", Ack(2, 1, 400, 400, 300)), Received("b", Ack(2, 1, 500, 500, 400)))
    assert _sent(driver) == [(start, start + 100) for start in range(500, 1_300, 100)]


def test_missing_frame_is_sent_again_if_the_repetition_is_lost() -> None:
    driver = master("b", settings=Settings(batch_bytes=100))
    connect(driver, "b", 100)
    driver.give(Appended(300))
    driver.effects.clear()
    driver.give(Received("b", Ack(2, 1, 100, 100, 200)))
    assert _sent(driver) == [(100, 200)]
    driver.wait(Settings().heartbeat_ms)
    assert _sent(driver) == [(200, 200)], "a heartbeat"
    driver.give(Received("b", Ack(2, 1, 100, 100, 200)))
    assert _sent(driver) == [(100, 200)]


def _sent(driver: Driver) -> list[tuple[int, int]]:
    """Return what was sent of the log, and forget all effects."""
    sent = [(each.start, each.end) for each in driver.effects if isinstance(each, SendLog)]
    driver.effects.clear()
    return sent


def test_frame_that_is_not_full_waits_for_the_ack_of_the_previous_one() -> None:
    driver = master("b", settings=Settings(batch_bytes=100))
    connect(driver, "b", 100)
    driver.give(Appended(110))
    assert driver.take(SendLog) == SendLog("b", 2, 1, 100, 110, 100, True)
    driver.give(Appended(120), Appended(130))
    assert not driver.has(SendLog)
    driver.give(Appended(220))
    assert driver.take(SendLog) == SendLog("b", 2, 1, 110, 210, 100, True)
    driver.give(Received("b", Ack(2, 1, 110, 110, 100)))
    assert not driver.has(SendLog)
    driver.give(Received("b", Ack(2, 1, 210, 210, 110)))
    assert driver.take(SendLog) == SendLog("b", 2, 1, 210, 220, 210, True)


def test_frame_that_waits_for_a_lost_ack_is_sent_after_the_next_heartbeat() -> None:
    driver = master("b")
    connect(driver, "b", 100)
    driver.give(Appended(110))
    driver.effects.clear()
    driver.give(Appended(120))
    driver.wait(Settings().heartbeat_ms)
    beat = driver.take(SendLog)
    assert (beat.start, beat.end) == (110, 110)
    driver.give(Received("b", Ack(2, 1, 110, 110, 110)))
    assert driver.take(SendLog) == SendLog("b", 2, 1, 110, 120, 110, True)


def test_master_stops_when_another_epoch_exists() -> None:
    driver = master("b")
    driver.give(Received("c", Ask(3, 1)))
    assert driver.take(StopBeingMaster).epoch == 2
    assert driver.member.role is Role.FOLLOWER
    assert not driver.member.may_store()
    assert driver.member.answer(2, 100, timed_out=False) is SendAnswer.NOT_CONFIRMED


def _without_register(driver: Driver, time_ms: int, replica: str = "") -> None:
    """Let all operations of the register fail for a time, while a replica acknowledges."""
    for _ in range(0, time_ms, 100):
        driver.wait(100)
        for effect in list(driver.effects):
            if isinstance(effect, ReadRegister | WriteRegister):
                driver.give(RegisterFailed(effect.request))
        if replica:
            driver.give(Received(replica, Ack(2, 1, 100, 100, 0)))
        if driver.member.role is Role.MASTER:
            driver.effects.clear()


def test_master_without_register_continues_while_its_replicas_acknowledge() -> None:
    driver = master("b")
    connect(driver, "b", 100)
    _without_register(driver, 60_000, "b")
    assert driver.member.role is Role.MASTER
    _without_register(driver, 2_100)
    assert driver.take(StopBeingMaster).reason == "the lease has expired"


def test_master_alone_without_register_stops_when_its_lease_expires() -> None:
    driver = master()
    _without_register(driver, 9_800)
    assert driver.member.role is Role.MASTER
    _without_register(driver, 300)
    assert driver.take(StopBeingMaster).reason == "the lease has expired"


def _fill(driver: Driver, time_ms: int, *, able: frozenset[str], epoch: int = 2) -> None:
    """Let the disk of the master be full, while replicas acknowledge, and respond when asked for their positions."""
    driver.give(Able(False))
    for _ in range(0, time_ms, 100):
        driver.effects.clear()
        driver.wait(100)
        driver.give(*(Received(each, Ack(2, 1, 100, 100, 0)) for each in ("b", "c")))
        asked = driver.sent(Ask)
        if driver.has(WriteRegister):
            driver.write("3")
        for name in ("b", "c") if asked else ():
            answer = Position(epoch, asked[-1].round, 2, 100, None, False, "", name in able)
            driver.give(Received(name, answer))
        if driver.sent(HandOver):
            return


def test_master_with_a_full_disk_hands_over_to_a_replica_that_can_store() -> None:
    driver = _with_replicas()
    _fill(driver, 4_900, able=frozenset("c"))
    assert not driver.has(HoldAppends)
    _fill(driver, 700, able=frozenset("c"))
    assert [
        each.member for each in driver.effects if isinstance(each, Send) and isinstance(each.message, HandOver)
    ] == ["c"]
    assert driver.take(HoldAppends).held


def test_master_with_a_full_disk_continues_if_no_replica_is_known_to_have_space() -> None:
    for settings, able, epoch in (
        (SYNC, "", 2),
        (SYNC, "bc", 1),
        (SYNC._replace(failover=Failover.MANUAL), "bc", 2),
    ):
        driver = _with_replicas(settings)
        _fill(driver, 20_000, able=frozenset(able), epoch=epoch)
        assert not driver.has(HoldAppends)
        assert not driver.sent(HandOver)
        assert driver.member.role is Role.MASTER


def test_master_whose_disk_has_space_again_does_not_hand_over() -> None:
    driver = _with_replicas()
    for _ in range(5):
        _fill(driver, 4_000, able=frozenset("bc"))
        driver.give(Able(True))
    assert not driver.has(HoldAppends)


def _with_replicas(settings: Settings = SYNC) -> Driver:
    driver = master("b", "c", settings=settings)
    connect(driver, "b", 100)
    connect(driver, "c", 100)
    return driver


# Sends


def test_sends_are_stored_only_with_enough_members_in_sync() -> None:
    driver = master(settings=SYNC._replace(min_in_sync=2))
    assert not driver.member.may_store()
    connect(driver, "b", 100)
    driver.wait(100)
    assert not driver.member.may_store(), "the write of the set is in progress"
    driver.write("3")
    assert driver.member.may_store()


def test_response_states_whether_a_send_is_confirmed_on_a_replica() -> None:
    driver = master("b")
    driver.give(Appended(180))
    assert driver.member.answer(2, 180, timed_out=False) is None
    assert driver.member.answer(2, 180, timed_out=True) is SendAnswer.NOT_CONFIRMED
    connect(driver, "b", 180)
    assert driver.member.answer(2, 180, timed_out=False) is SendAnswer.CONFIRMED
    assert driver.member.answer(1, 180, timed_out=False) is SendAnswer.NOT_CONFIRMED
    assert master().member.answer(2, 100, timed_out=False) is SendAnswer.NO_REPLICA


def test_send_that_was_stored_before_the_set_became_too_small_is_not_confirmed() -> None:
    driver = master("b", settings=SYNC._replace(min_in_sync=2))
    connect(driver, "b", 100)
    driver.give(Appended(180))
    driver.wait(1_500)
    driver.write("3")
    driver.wait(600)
    driver.write("4")
    assert driver.member.log.confirmed == 180
    assert driver.member.answer(2, 180, timed_out=False) is SendAnswer.NOT_CONFIRMED
