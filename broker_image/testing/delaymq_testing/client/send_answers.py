"""Twin of the kernel that reads responses to sends (docs/kernels.md), and random responses."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any, Final

from delaymq.client.producer.plain_answers import SendAnswer
from delaymq.message import names
from delaymq.protocol.command import FLAG_RESPONSE, Command, encode_command

from delaymq_testing.broker.plain_sends.sends import (
    INTEGER,
    damaged,
    frame_at,
    framed,
    usual_command,
    usual_header,
)

_FIELDS: Final = {"queueId", "queueOffset", "msgId", names.MSG_REGION, names.TRACE_ON}
_RESPONSE: Final = usual_header("|".join(_FIELDS))
_is_integer: Final = re.compile(INTEGER).fullmatch
_UNUSUAL: Final = (
    "", "0", "3", "03", " 3", "-1", "-0", "1.5", "٣", "true", "false", "größe 😀", 'a"\\\n', "2147483647", "2147483648",
    "9223372036854775807", "9223372036854775808", "9" * 30,
)  # fmt: skip


def split_send_answers(data: bytes) -> list[SendAnswer]:
    """Return the usual responses to sends at the start of `data`, up to the first other or incomplete frame."""
    found: list[SendAnswer] = []
    at = 0
    while frame := frame_at(data, at):
        at += 4 + len(frame)
        answer = _answer(frame, at)
        if answer is None:
            break
        found.append(answer)
    return found


def _answer(frame: bytes, end: int) -> SendAnswer | None:
    command = usual_command(frame, _RESPONSE)
    if command is None or command.code or command.flag != FLAG_RESPONSE or command.remark is not None or command.body:
        return None
    fields = command.fields
    if fields.keys() != _FIELDS or b'"opaque"' not in frame:
        return None
    numbers = fields["queueId"], fields["queueOffset"]
    if not all(_is_integer(number) and int(number) >= 0 for number in numbers):
        return None
    queue_id, queue_offset = map(int, numbers)
    if queue_id >= 1 << 31 or queue_offset >= 1 << 63:
        return None
    region, trace_on = fields[names.MSG_REGION], fields[names.TRACE_ON] != "false"
    return command.opaque, end, queue_id, queue_offset, fields["msgId"], region, trace_on


def random_answer(chance: Random, opaque: int, unusual: float) -> bytes:
    """A frame of a response to a send, in the forms of RocketMQ's broker and DelayMQ's, occasionally an unusual one."""
    fields: dict[str, str] = {
        "queueId": str(chance.randrange(8)), "queueOffset": str(chance.randrange(10**6)), "TRACE_ON": "true",
        "MSG_REGION": chance.choice(["DefaultRegion", "größe"]), "msgId": chance.randbytes(16).hex().upper(),
    }  # fmt: skip
    header: dict[str, Any] = {"code": 0, "flag": 1, "opaque": opaque}
    body = b""
    if chance.random() < unusual:
        kind = chance.randrange(5)
        if kind == 0:
            fields[chance.choice([*fields])] = chance.choice(_UNUSUAL)
        elif kind == 1:
            del fields[chance.choice([*fields])]
        elif kind == 2:
            fields[chance.choice(["recallHandle", "delayKept", "a"])] = chance.choice(_UNUSUAL)
        elif kind == 3:
            header |= chance.choice([
                {"code": 10}, {"flag": 0}, {"flag": 3}, {"remark": "r"}, {"remark": None}, {"other": 1}, {"code": "0"},
                {"opaque": 2**31}, {"opaque": -1},
            ])  # fmt: skip
        else:
            body = b"x"
    if chance.random() < 0.5 and header["opaque"] == opaque and len(header) == 3:
        command = Command(int(header["code"]), opaque, header["flag"], fields=fields, body=body)
        command.binary = chance.random() < unusual / 10
        return encode_command(command)
    order = [*fields]
    chance.shuffle(order)
    header |= {
        "extFields": {name: fields[name] for name in order}, "language": "JAVA", "serializeTypeCurrentRPC": "JSON",
        "version": 399,
    }  # fmt: skip
    text = json.dumps(header, separators=(",", ":"), sort_keys=chance.random() < 0.5, ensure_ascii=opaque % 2 == 0)
    return framed(text.encode(), body)


def random_answers(chance: Random) -> bytes:
    """What a client may receive: responses to sends, most of them usual, some damaged, and an incomplete end."""
    unusual = chance.choice([0, 0.05, 0.5])
    frames = [random_answer(chance, chance.randrange(2**31), unusual) for _ in range(chance.randrange(1, 9))]
    for number, frame in enumerate(frames):
        if chance.random() < 0.1:
            frames[number] = damaged(frame, chance)
    data = b"".join(frames)
    return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.2 else data
