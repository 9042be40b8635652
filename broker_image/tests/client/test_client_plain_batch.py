"""Batches of plain messages that are alike have the content of the usual path, with and without the compiled kernel."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from delaymq import kernels
from delaymq.client import Message, ProducerOptions
from delaymq.client.sending import outgoing, plain_batch
from delaymq.client.sending.batches import MAX_BATCH_MESSAGES
from delaymq.client.sending.outgoing import Outgoing, outgoing_batch
from delaymq.client.sending.plain_batch import encode_plain_batch_twin
from delaymq.client.sending.properties import plain_text
from delaymq.message.errors import IllegalMessageError
from delaymq.message.ids import MAX_RESERVED, UniqueIds
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from msgspec.structs import astuple

OPTIONS = ProducerOptions()
RARE: list[dict[str, Any]] = [
    {"tags": "A"}, {"keys": ("k", "ö")}, {"properties": {"p": "q"}}, {"flag": 2**31 - 1}, {"flag": -(2**31)},
    {"delay": "1s"}, {"at": datetime(2100, 1, 1, tzinfo=UTC)}, {"topic": "U"}, {"wait_stored": False},
    {"delay_level": 1}, {"delay_level": -1}, {"properties": {"WAIT": "x"}}, {"keys": []}, {"body": bytearray(b"x")},
]  # fmt: skip
ENCODERS = [
    encode_plain_batch_twin,
    pytest.param(kernels.compiled("encode_plain_batch"), marks=NEEDS_KERNELS),
]


class _Same(UniqueIds):
    """Ids that are the same for each generator."""

    def __init__(self, first: int) -> None:
        super().__init__("::1")
        self._prefix = "0F" * 22
        for _ in range(first):
            next(self._counter)

    def _start(self, now_ms: int | None = None) -> str:
        return f"{self._prefix}00000001"


class Labelled(Message):
    """A message with a field in front of all others, and one that replaces an inherited one."""

    label: str = "L"
    flag: int = 5


def _messages(chance: Random) -> list[Message]:
    """Messages that are nearly all alike."""
    usual: dict[str, Any] = {"topic": "T", "wait_stored": chance.random() < 0.8, "flag": chance.choice([0, 0, -7])}
    rarely = chance.choice([0, 0, 0.2])
    return [
        Message(
            **usual | {"body": chance.randbytes(chance.choice([0, 5, 5, 5, 1_000]))}
            | (chance.choice(RARE) if chance.random() < rarely else {})
        )
        for _ in range(chance.randrange(9))
    ]  # fmt: skip


def _outcome(messages: list[Message], first: int) -> Outgoing | str:
    try:
        return outgoing_batch(messages, _Same(first), OPTIONS)
    except IllegalMessageError as error:
        return str(error)


@pytest.mark.parametrize("encode", ENCODERS)
def test_batch_is_that_of_the_usual_path(encode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, plain, inputs = Random(SEED), 0, FUZZ_INPUTS // 10
    monkeypatch.setattr(plain_batch, "_encode", encode)
    for _ in range(inputs):
        messages, first = _messages(chance), chance.randrange(20)
        if plain_batch.plain_batch(messages, UniqueIds()) is None:
            continue
        plain += 1
        found = _outcome(messages, first)
        with monkeypatch.context() as patched:
            patched.setattr(outgoing, "plain_batch", lambda *_: None)
            assert _outcome(messages, first) == found
    assert inputs / 4 < plain < inputs


@NEEDS_KERNELS
def test_kernel_returns_what_its_twin_returns() -> None:
    chance, kernel, plain = Random(SEED), kernels.compiled("encode_plain_batch"), 0
    for _ in range(FUZZ_INPUTS):
        messages = _messages(chance) or [Message(topic="T", body=b"")]
        before, after = plain_text(messages[0], "\n").split("\n")
        start = chance.choice(["", "0A", "7F" * 26])
        given = [*map(astuple, messages)], before, after, start, chance.choice([0, 9, 65_530, 65_535])
        found = kernel(*given)
        assert found == encode_plain_batch_twin(*given), given
        plain += found is not None
    assert FUZZ_INPUTS / 4 < plain < FUZZ_INPUTS


@pytest.mark.parametrize("encode", ENCODERS)
def test_equal_values_need_not_be_the_same_objects(encode: Any) -> None:
    rows = [astuple(Message(topic="".join(["T", "opic"]), body=b"x", flag=int("70000"))) for _ in range(2)]
    assert rows[0][0] is not rows[1][0]
    _, ids = encode(rows, "a", "b", "0A", 65_535)
    assert ids == "0AFFFF,0A0000"


@pytest.mark.parametrize("encode", ENCODERS)
def test_messages_that_differ_are_left_to_the_usual_path(encode: Any) -> None:
    row = astuple(Message(topic="T", body=b"x"))
    for field, value in enumerate((None, None, "A", ("k",), {"p": "q"}, 1, None, None, "1s", "2100")):
        if value is not None:
            assert encode([row, (*row[:field], value, *row[field + 1 :])], "a", "b", "0A", 0) is None
            assert encode([(*row[:field], value, *row[field + 1 :]), row], "a", "b", "0A", 0) is None


@pytest.mark.parametrize("count", [MAX_RESERVED, MAX_RESERVED + 1, MAX_BATCH_MESSAGES])
def test_ids_of_a_batch_are_unique_whatever_its_size(count: int) -> None:
    batch = outgoing_batch([Message(topic="T", body=b"")] * count, UniqueIds(), OPTIONS)
    ids = batch.message_id.split(",")
    assert len({*ids}) == len(ids) == count
    assert all(batch.body.count(each.encode()) == 1 for each in ids[:: count // 8])


def test_subclass_with_other_fields_takes_the_usual_path() -> None:
    messages = [Message(topic="T", body=b"x", flag=5), Labelled(topic="T", body=b"x")]
    assert plain_batch.plain_batch(messages, UniqueIds()) is None
    assert plain_batch.plain_batch(messages[1:], UniqueIds()) is None
    labelled = outgoing_batch(messages[1:], _Same(0), OPTIONS)
    assert labelled == outgoing_batch(messages[:1], _Same(0), OPTIONS)
