"""Limits of changes of pending messages: index files, unique ids, the index of keys, late messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from delaymq.broker.delivery import delay_rewrite
from delaymq.message import names
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.store.message_store import MessageStore
from delaymq_testing.broker.changing import (
    ILLEGAL,
    SUCCESS,
    Open,
    act,
    deliver,
    records,
    schedule,
    send,
)
from delaymq_testing.broker.harness import Harness, response_of
from delaymq_testing.broker.transactions import COMMIT, TOPIC, Transacting


def test_number_of_index_files_does_not_limit_the_search_for_a_name(open_harness: Open) -> None:
    harness = open_harness(max_hash_slot_num=16, max_index_num=4)
    schedule(harness, "old", DELAY_KEY="old")
    for number in range(250):
        send(harness, f"filler {number}")
    assert harness.broker.store.index_files > 70
    schedule(harness, "new", DELAY_KEY="new")
    for properties in ({"DELAY_KEY": "old"}, {"TIMER_DEL_UNIQKEY": "id-new"}):
        assert act(harness, "cancel", **properties).code == SUCCESS
    assert harness.broker.delivery.pending_total() == 0


def test_transaction_with_a_key_and_without_an_index_is_rejected_at_its_half(open_harness: Open) -> None:
    harness = open_harness(message_index_enable=False)
    answer = send(harness, TRAN_MSG="true", PGROUP="g", TIMER_DELAY_MS="5", DELAY_KEY="k")
    assert answer.code == ILLEGAL
    assert "messageIndexEnable=true" in str(answer.remark)


def test_commit_succeeds_without_the_key_if_the_index_has_become_incomplete(
    open_transacting: Callable[..., Transacting], monkeypatch: pytest.MonkeyPatch
) -> None:
    transacting = open_transacting()
    schedule(transacting, "first", TOPIC, DELAY_KEY="k")
    half = transacting.prepare(TIMER_DELAY_MS="60000", DELAY_KEY="k")
    monkeypatch.setattr(MessageStore, "has_all_keys", False)
    transacting.end(half, COMMIT)
    assert transacting.broker.delivery.pending_total() == 2
    transacting.clock.advance(60_000)
    transacting.broker.hand_over(transacting.clock(), 64)
    copies = records(transacting, TOPIC)
    assert [record.body.decode() for record in copies] == ["first", f"body of {half.key}"]
    assert "DELAY_KEY" not in copies[1].properties


@pytest.mark.parametrize("is_paused", [False, True])
def test_commit_succeeds_without_a_group_beyond_the_limit_unless_it_is_paused(
    open_transacting: Callable[..., Transacting], monkeypatch: pytest.MonkeyPatch, is_paused: bool
) -> None:
    transacting = open_transacting()
    partitions = transacting.broker.delivery.timeline.partitions
    monkeypatch.setattr(delay_rewrite, "MAX_GROUPS", 2)
    halves = [transacting.prepare(DELAY="1", DELAY_GROUP=f"g{number}") for number in range(4)]
    again = transacting.prepare(TIMER_DELAY_MS="60000", DELAY_GROUP="g1")
    if is_paused:
        assert act(transacting, "pause", TOPIC, DELAY_GROUP="g3").code == SUCCESS
    for half in (*halves, again):
        transacting.end(half, COMMIT)
    assert transacting.broker.delivery.pending_total() == 5
    assert (partitions.groups, partitions.totals_of_group(TOPIC, "g1").messages) == (2 + is_paused, 2)
    transacting.clock.advance(60_000)
    transacting.broker.hand_over(transacting.clock(), 64)
    delivered = [record.properties.get("DELAY_GROUP") for record in records(transacting, TOPIC)]
    assert not any("DELAY" in record.properties for record in records(transacting, names.TIMER_TOPIC))
    assert delivered == ["g0", "g1", None, *([] if is_paused else [None]), "g1"]


@pytest.mark.parametrize("treatment", ["keep", "refuse"])
def test_message_that_is_already_too_late_keeps_no_other_one_out(harness: Harness, treatment: str) -> None:
    schedule(harness, "first", DELAY_KEY="k", DELAY_EXPIRE_MS="500", TIMER_DELAY_MS="1000")
    harness.broker.delivery.control.pause()
    harness.clock.now_ms += 100_000
    answer = send(harness, "second", DELAY_KEY="k", DELAY_ON_SAME_KEY=treatment, TIMER_DELAY_MS="1000")
    assert (answer.code, answer.fields.get("delayKept")) == (SUCCESS, None)
    harness.broker.delivery.control.resume()
    assert deliver(harness, 2_000) == ["second"]


@pytest.mark.parametrize("other", [{"TIMER_DELAY_SEC": "junk"}, {"TIMER_DELAY_SEC": "5"}, {"TIMER_DELIVER_MS": "7"}])
def test_touched_message_with_a_level_ignores_other_delays(open_harness: Open, other: dict[str, str]) -> None:
    harness = open_harness(message_delay_level="1s 1h")
    send(harness, "keyed", DELAY="2", DELAY_KEY="k", **other)
    send(harness, "moved", DELAY="2", **other)
    assert act(harness, "move", TIMER_DEL_UNIQKEY="id-moved", TIMER_DELAY_MS="7200000").code == SUCCESS
    for properties in ({"DELAY_KEY": "k"}, {"TIMER_DEL_UNIQKEY": "id-moved"}):
        touched = act(harness, "touch", **properties)
        assert int(touched.fields["delayDueMs"]) == harness.clock() + 3_600_000


def test_unique_id_of_too_many_records_is_not_answered_wrongly(harness: Harness) -> None:
    for number in range(65):
        harness.send("Orders", b"m", {"UNIQ_KEY": "same", "TIMER_DELAY_MS": "60000"})
        if number == 63:
            answer = act(harness, "touch", TIMER_DEL_UNIQKEY="same")
            assert (answer.code, answer.fields["delayChanged"]) == (SUCCESS, "64")
    answer = act(harness, "cancel", TIMER_DEL_UNIQKEY="same")
    assert answer.code not in (SUCCESS, ResponseCode.ILLEGAL_OPERATION)
    assert "more than 64 records have this unique id" in str(answer.remark)
    assert harness.broker.delivery.pending_total() == 65


def test_unique_id_that_is_not_utf8_is_stored_once_with_a_usable_handle(harness: Harness) -> None:
    sent = response_of(harness.send("Orders", b"m", {"UNIQ_KEY": "id-\udcff", "TIMER_DELAY_MS": "60000"}))
    assert sent.code == SUCCESS
    fields = {"topic": "Orders", "recallHandle": sent.fields["recallHandle"], "producerGroup": "g"}
    assert response_of(harness.ask(RequestCode.RECALL_MESSAGE, fields)).code == SUCCESS
    assert harness.broker.delivery.pending_total() == 0
