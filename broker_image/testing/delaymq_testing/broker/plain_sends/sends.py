"""Frames of producers: random sends in the forms of several clients, hostile ones, and how usual ones are read."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any, Final

from delaymq.message.names import CLOSED_TO_CLIENTS
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, decode_command, encode_command
from delaymq.protocol.errors import ProtocolError

from delaymq_testing.broker.batches import random_batch, random_properties
from delaymq_testing.broker.harness import START_MS
from delaymq_testing.broker.plain_sends.signing import Keys, signed

TOPICS = ("Orders", "Orders", "Orders", "Bills", "Bills", "t" * 127)
RARE_TOPICS = ("Unknown", "%RETRY%readers", "%DLQ%readers", "TBW102", "größe", "", "x" * 128, *CLOSED_TO_CLIENTS)
HOST = b"\x0a\0\0\2\0\0\xc3\x50"
ANSWER = (b'{"id":"', b'","queue":', b',"offset":', b',"opaque":', b"}", b',"handle":"', b'","opaque":', "größe")
"""Parts of a response."""
RARE_FIELDS: dict[str, tuple[str | None, ...]] = {
    "a": (None, "", "größe 😀"),
    "c": (None, "", "Orders"),
    "d": (None, "-1", "2147483648", "+4", " 4", "04"),
    "e": ("-1", "7", "9", "2147483647", "-2147483649", "1e0", "-0", "00", "", "１"),
    "f": ("1", "2", "4", "8", "12", "16", "32", "256", "-1", "0x1"),
    "g": ("-1", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1.5"),
    "h": ("-1", "2147483647", "2147483648", None),
    "i": (
        None,
        "",
        "alone",
        "\x02\x02",
        "DELAY\x011",
        "TIMER_DELAY_MS\x01900000",
        "a\x01\ud800",
        "a\x01b\0",
        "WAIT\x01false",
        "WAIT\x01",
        "WAIT\x01TRUE",
        "WAIT\x01tru\u212a",
        "DELAY\x011\x02WAIT\x01no",
    ),
    "j": (None, "3", "-1", "", "true"),
    "k": (None, "true", "True", "1", "0", ""),
    "l": (None, "16", "x"),
    "m": (None, "true", "True", "0", "1"),
    "n": ("broker-a", ""),
    "o": ("", "1"),
    "AccessKey": ("ann",),
    "aa": ("a",),
}
DELAYS = (
    *(f"DELAY\x01{level}" for level in (1, 1, 1, 2, 3, 5, 18)),
    "DELAY\x011\x02REAL_TOPIC\x01Bills\x02REAL_QID\x017",
    "TIMER_DELAY_MS\x011",
    "TIMER_DELAY_MS\x01900000\x02WAIT\x01TRUE",
    "TIMER_DELAY_SEC\x013",
    "TIMER_DELAY_SEC\x01259200",
    *(f"{name}\x01{START_MS + more}" for name in ("TIMER_DELIVER_MS", "__STARTDELIVERTIME") for more in (7, 60_000)),
    "TIMER_DELAY_SEC\x011\x02REAL_TOPIC\x01Bills\x02REAL_QID\x017\x02CLUSTER\x01c",
)
RARE_DELAYS = (
    *(
        f"DELAY\x01{text}"
        for text in ("0", "-1", "+1", "01", "19", "1000", "99999999999", "9" * 30, "1.0", "x", "\uff11")
    ),
    *(f"DELAY\x011\x02{name}\x0110" for name in ("DELAY_KEY", "DELAY_GROUP", "DELAY_EXPIRE_MS", "TIMER_OUT_MS")),
    *(f"DELAY\x011\x02{name}\x01900000" for name in ("TIMER_DELAY_MS", "__STARTDELIVERTIME", "DELAY_EVERY_MS")),
    "DELAY\x011\x02TRAN_MSG\x01true",
    "DELAY\x011\x02__DMQ_DUE\x011",
    "DELAY\x011\x02RETRY_TOPIC\x01a",
    "DELAY\x011\x02DELAY\x01",
    f"DELAY\x012\x02long\x01{'x' * 32_000}",
    *(
        f"TIMER_DELAY_MS\x01{text}"
        for text in ("0", "-1", "+1", "01", "259200000", "259200001", "9223372036854775807", "9" * 30, "1.0", "\uff11")
    ),
    *(f"TIMER_DELAY_SEC\x01{text}" for text in ("259201", "9223372036854775", "9223372036854776", "x")),
    *(f"TIMER_DELIVER_MS\x01{text}" for text in (0, 1, -1, START_MS, START_MS - 1, 10**15, 10**18 - 1, 10**18)),
    *(f"TIMER_DELAY_MS\x0110\x02{name}\x0110" for name in ("DELAY_KEY", "DELAY_GROUP", "DELAY_EXPIRE_MS")),
    *(f"TIMER_DELAY_MS\x0110\x02{name}\x0110" for name in ("TIMER_DELAY_SEC", "__STARTDELIVERTIME", "DELAY")),
    *(f"TIMER_DELAY_MS\x0110\x02{name}\x01900000" for name in ("TIMER_OUT_MS", "DELAY_EVERY_MS", "TIMER_ROLL_TIMES")),
    "TIMER_DELAY_MS\x0110\x02TRAN_MSG\x01true",
    "TIMER_DELAY_MS\x0110\x02__DMQ_DUE\x011",
    "TIMER_DELAY_MS\x0110\x02UNIQ_KEY\x01größe 😀",
    *(f"TIMER_DELAY_MS\x012\x02long\x01{'x' * size}" for size in (32_000, 32_200, 32_767)),
)
RARE_HALVES = (
    "", "TRAN_MSG\x01false", "TRAN_MSG\x01True", "TRAN_MSG\x01true\x02TRANSACTION_CHECK_TIMES\x011",
    "TRAN_MSG\x01true\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160", "TRAN_MSG\x01true\x02TRAN_PREPARED_QUEUE_OFFSET\x011",
    "TRAN_MSG\x01true\x02REAL_TOPIC\x01Bills\x02REAL_QID\x017", "TRAN_MSG\x01true\x02WAIT\x01false",
    "TRAN_MSG\x01true\x02DELAY\x012", "TRAN_MSG\x01true\x02__DMQ_MARK\x01x", "TRAN_MSG\x01true\x02KEYS\x01a b",
    "TRAN_MSG\x01true\x02TIMER_DELAY_MS\x01900000", "TRAN_MSG\x01true\x02CLUSTER\x01c",
)  # fmt: skip
RARE_ENDS: dict[str, tuple[str | None, ...]] = {
    "producerGroup": ("", "others", None),
    "commitOrRollback": ("0", "4", "9", "08", "", None, "x"),
    "tranStateTableOffset": ("-1", "00", " 1", "9223372036854775808"),
    "commitLogOffset": ("-1", "0", "+1", "9223372036854775807", "-9223372036854775808"),
    "fromTransactionCheck": ("true", "True", "1", "", None),
    "msgId": (None, ""),
    "transactionId": (None, "größe"),
    "bname": ("broker-a",),
    "topic": ("Orders",),
    "b": ("Orders",),
    "AccessKey": ("ann",),
}
ESCAPES = ('"', "\\", "/", "\b\f\n\r\t", "\x00\x1f", "é", "😀", "\x7f\u2028", "\ufeff")
MAX_HEADER_BYTES: Final = 0xFFFF
INTEGER = r"(?:0|-?[1-9][0-9]*)"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_ENDING = (
    "producerGroup|tranStateTableOffset|commitLogOffset|commitOrRollback|msgId|fromTransactionCheck|transactionId"
    "|bname|topic"
)


def usual_header(fields: str) -> re.Pattern[str]:
    """Return the pattern of compact JSON with the usual members, and with the fields whose names a pattern matches."""
    field = rf'"(?:{fields})":{_STRING}'
    member = (
        rf'"(?:code|flag|opaque|version)":{INTEGER}|"(?:language|serializeTypeCurrentRPC)":{_STRING}'
        rf'|"extFields":\{{{field}(?:,{field})*\}}'
    )
    return re.compile(rf"\{{(?:{member})(?:,(?:{member}))*\}}")


_REQUEST = usual_header(f"[a-n]|{_ENDING}|AccessKey|Signature")
_NAMES = re.compile(rf'("[a-zA-Z_]+"):(?:{_STRING}|{INTEGER}|\{{)').findall


def encoder_arguments(
    data: bytes,
    topics: Any,
    queues: Any,
    *,
    halves: Any = (-1, [], 0, 1 << 40),
    delays: Any = ((), {}, 0, 0, -1),
    signer: Any = None,
    log: Any = b"",
    end: int = 0,
) -> tuple[Any, ...]:
    """Return arguments of `SendEncoder.encode` for a log that begins at 0 and ends at `end`, with small limits."""
    return (
        data, topics, HOST, HOST, 100, "c", ANSWER, False, halves, delays, signer, queues, end, 0, 1_000, 1 << 20, log,
        0,
    )  # fmt: skip


def send_fields_of(chance: Random, topics: tuple[str, ...] = TOPICS, unusual: float = 0.05) -> dict[str, str | None]:
    """Fields of a send, one in some of which is unusual; None as a value is a null."""
    text = random_properties(chance).decode(errors="replace")
    if chance.random() < 0.5:
        text = f"UNIQ_KEY\x01{chance.getrandbits(128):032X}\x02WAIT\x01true"
    if chance.random() < 0.1:
        text += f"\x02text\x01{''.join(chance.choice(ESCAPES) for _ in range(4))}"
    if chance.random() < 0.3:
        text += "\x02" + chance.choice(RARE_DELAYS if chance.random() < unusual else DELAYS)
    fields: dict[str, str | None] = {
        "a": "producers", "b": chance.choice(topics), "c": "TBW102", "d": "4", "e": str(chance.randrange(4)),
        "f": "0", "g": str(START_MS - chance.randrange(5_000)), "h": "0", "i": text, "j": "0", "k": "false",
        "m": "false",
    }  # fmt: skip
    if chance.random() < unusual:
        fields["b"] = chance.choice(RARE_TOPICS)
    if chance.random() < unusual:
        name = chance.choice([*RARE_FIELDS])
        fields[name] = chance.choice(RARE_FIELDS[name])
    if chance.random() < unusual:
        del fields[chance.choice([*fields])]
    return fields


def half_fields_of(
    chance: Random, topics: tuple[str, ...] = TOPICS, unusual: float = 0.05, group: str = "producers"
) -> dict[str, str | None]:
    """Fields of the send of a half message, one in some of which is unusual."""
    fields = send_fields_of(chance, topics, unusual)
    prepared, group_pair = "TRAN_MSG\x01true", f"PGROUP\x01{group}"
    fields["f"] = "4"
    if chance.random() < unusual:
        fields["f"] = chance.choice(["0", "5", "8", "12", "36", "-1"])
    if chance.random() < unusual:
        prepared, group_pair = chance.choice(RARE_HALVES), chance.choice([group_pair, "", "PGROUP\x01größe"])
    fields["i"] = "\x02".join([*filter(None, [fields.get("i"), prepared, group_pair])])
    return fields


def end_frame(
    chance: Random, opaque: int, half: tuple[int, int, str], unusual: float = 0.05, keys: Keys | None = None
) -> bytes:
    """A frame of the end of a transaction; `half` are queue offset, physical offset and group of its half message.

    `keys`: the account that signs it.
    """
    number, place, group = half
    fields: dict[str, str | None] = {
        "producerGroup": group, "tranStateTableOffset": str(number), "commitLogOffset": str(place),
        "commitOrRollback": chance.choice(["8", "8", "8", "12"]), "fromTransactionCheck": "false", "msgId": "U1",
        "transactionId": "U1",
    }  # fmt: skip
    changes: dict[str, Any] = {"code": RequestCode.END_TRANSACTION, "flag": 2}
    if chance.random() < unusual:
        name = chance.choice([*RARE_ENDS])
        fields[name] = chance.choice(RARE_ENDS[name])
    if chance.random() < unusual:
        name = chance.choice(["tranStateTableOffset", "commitLogOffset"])
        fields[name] = str(int(fields[name] or 0) + chance.choice([-1, 1, 88, 2**62]))
    if chance.random() < unusual:
        del fields[chance.choice([*fields])]
    if chance.random() < unusual:
        changes |= chance.choice([{"flag": 0}, {"flag": 3}, {"remark": "r"}, {"code": 323}, {"code": 310, "flag": 0}])
    fields = signed(chance, fields, b"", keys, unusual)
    if chance.random() < 0.3 and None not in fields.values() and changes["flag"] == 2:
        texts = {name: value or "" for name, value in fields.items()}
        return encode_command(Command(RequestCode.END_TRANSACTION, opaque, 2, fields=texts))
    return java_frame(fields, opaque, b"", **changes)


def java_frame(fields: dict[str, Any], opaque: int, body: bytes, /, **changes: Any) -> bytes:
    """A frame as RocketMQ's Java client writes it: names in alphabetical order, no spaces."""
    header = {
        "code": RequestCode.SEND_MESSAGE_V2, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON", "version": 399,
    } | changes  # fmt: skip
    text = json.dumps(header, separators=(",", ":"), sort_keys=True, ensure_ascii=opaque % 2 == 0)
    return framed(text.encode(errors="surrogatepass"), body)


def framed(header: bytes, body: bytes, word: int | None = None) -> bytes:
    """A frame with this header."""
    length, word = 4 + len(header) + len(body), len(header) if word is None else word
    return length.to_bytes(4, "big") + word.to_bytes(4, "big") + header + body


def random_body(chance: Random) -> bytes:
    return chance.randbytes(chance.choice([0, 1, 20, 100, 100, 1_024, 1_024, chance.randrange(5_000)]))


def random_frame(chance: Random, opaque: int, unusual: float = 0.05, keys: Keys | None = None) -> bytes:
    """A frame of a send, occasionally of another request; `keys`: the account that signs it."""
    body = random_body(chance)
    fields = signed(chance, send_fields_of(chance, unusual=unusual), body, keys, unusual)
    if chance.random() >= unusual:
        if chance.random() < 0.3 and None not in fields.values():
            texts = {name: (value or "").encode(errors="replace").decode() for name, value in fields.items()}
            return encode_command(Command(RequestCode.SEND_MESSAGE_V2, opaque, fields=texts, body=body))
        return java_frame(fields, opaque, body)
    return rare_frame(chance, opaque, fields, body)


def rare_frame(chance: Random, opaque: int, fields: dict[str, Any], body: bytes) -> bytes:
    """A frame that is no plain send, or that states one in an unusual form."""
    kind = chance.randrange(12)
    every: list[dict[str, Any]] = [
        {"flag": 2}, {"code": 10}, {"code": 320}, {"code": 99_999}, {"opaque": -opaque}, {"remark": "r"},
        {"flag": "0"}, {"opaque": 2**31}, {"other": 1}, {"language": 'J"\\'}, {"version": -1}, {"extFields": {}},
    ]  # fmt: skip
    changes = every[kind]
    if changes.get("code") == 320:
        return java_frame(fields, opaque, random_batch(chance), **changes)
    if chance.random() < 0.3:
        texts = {name: (value or "").encode(errors="replace").decode() for name, value in fields.items()}
        return encode_command(
            Command(RequestCode.SEND_MESSAGE_V2, opaque, chance.choice([0, 2]), fields=texts, body=body, binary=True)
        )
    if chance.random() < 0.2:
        header = {"code": RequestCode.SEND_MESSAGE_V2, "opaque": opaque, "extFields": fields}
        return framed(json.dumps(header).encode(errors="surrogatepass"), body)
    return java_frame(fields, opaque, body, **changes)


def damaged(data: bytes, chance: Random, most: int = 3) -> bytes:
    """Bytes with a few changed ones, sometimes cut or extended."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, most + 1) if changed else 0):
        at = chance.randrange(len(changed))
        changed[at] = chance.choice([changed[at] ^ 1 << chance.randrange(8), *b'"\\,:{}[]u0-9 \x00\xff'])
    if chance.random() < 0.2:
        del changed[chance.randrange(len(changed) + 1) :]
    return bytes(changed)


def frame_at(data: bytes, at: int) -> bytes:
    """Return the complete frame at a position, without its length; empty if there is none."""
    length = int.from_bytes(data[at : at + 4])
    frame = data[at + 4 : at + 4 + length]
    return frame if len(data) >= at + 4 and len(frame) == length else b""


def usual_command(frame: bytes, usual: re.Pattern[str] = _REQUEST) -> Command | None:
    """Return the command of a frame if its header is compact JSON without unusual or repeated names."""
    size = int.from_bytes(frame[:4])
    header = frame[4 : 4 + size]
    if len(frame) < 4 or len(header) != size or size > MAX_HEADER_BYTES:
        return None
    try:
        text = header.decode()
    except UnicodeDecodeError:
        return None
    if usual.fullmatch(text) is None:
        return None
    # Within strings, quotes are escaped, so that no text in them looks like a name.
    names = _NAMES(text)
    if len(names) != len(set(names)) or not {'"code"', '"extFields"'} <= set(names):
        return None
    try:
        return decode_command(frame)
    except ProtocolError:
        return None
