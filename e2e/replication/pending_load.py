"""A large number of pending messages, sent in batches, and the pending messages that a broker and a log state."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from delaymq.message.properties import encode_properties
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.transport import TransportError, connect
from harness.commitlog import held_by, mark_of, records
from replication.history import QUEUES, TOPIC, Kind, Send, outcome_of

IN_BATCH = 100
WORKERS = 4
TIMEOUT_MS = 10_000
FAR_SHARE, FAR_MS = 0.4, 3_600_000


def fill(address: tuple[str, int], count: int, first_ms: int, last_ms: int, seed: str) -> list[Send]:
    """Send messages to a master: most are due at random times between two, in ms since 1970, and others far ahead."""
    chance = random.Random(seed)

    def due_ms() -> int:
        return chance.randint(first_ms, last_ms) if chance.random() > FAR_SHARE else last_ms + FAR_MS

    batches = iter([range(first, first + IN_BATCH) for first in range(0, count, IN_BATCH)])
    sends: list[Send] = []

    async def work() -> None:
        connection = await connect(*address)
        for batch in batches:
            due = {f"P{number:07d}": due_ms() for number in batch}
            queue_id, asked_ms, asked_s = chance.randrange(QUEUES), int(time.time() * 1_000), time.monotonic()
            body = encode_batch(
                BatchMessage(0, key.encode() * 8, encode_properties({"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(at_ms)}))
                for key, at_ms in due.items()
            )
            fields = {
                "a": "producers", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0",
                "g": str(asked_ms), "h": "0", "i": "", "m": "true",
            }  # fmt: skip
            try:
                code = (
                    await connection.request(request_command(RequestCode.SEND_BATCH_MESSAGE, fields, body), TIMEOUT_MS)
                ).code
            except TransportError:
                code = None
            sends.extend(
                Send(
                    key=key, kind=Kind.TIMED, queue_id=queue_id, delay_ms=at_ms - asked_ms, asked_ms=asked_ms,
                    asked_s=asked_s, answered_s=time.monotonic(), outcome=outcome_of(code),
                )
                for key, at_ms in due.items()
            )  # fmt: skip
        connection.abort()

    async def work_all() -> None:
        await asyncio.gather(*(work() for _ in range(WORKERS)))

    asyncio.run(work_all())
    return sends


def pending_in_log(store_path: Path, until: int) -> dict[str, int]:
    """Return key and due time of the messages that are pending after the records before a physical offset."""
    keys: dict[int, str] = {}
    pending: dict[str, int] = {}
    for record in records(store_path):
        if record.physical_offset >= until:
            break
        if record.is_timed:
            held = held_by(record)
            assert held is not None
            keys[held.identity] = record.unique_key
            pending[record.unique_key] = held.due_ms
        elif (mark := mark_of(record)) is not None:
            del pending[keys[mark.identity]]  # type: ignore[union-attr]
    return pending


def epoch_start(store_path: Path, epoch: int) -> int:
    """Return the physical offset at which an epoch begins."""
    content = json.loads((store_path / "delaymq" / "epochs.json").read_text())
    return int(dict(content["epochs"])[epoch])


def pending_pages(get: Callable[[str], Any], from_ms: int, pages: int | None) -> Iterator[Sequence[tuple[str, int]]]:
    """Yield pages of message id and due time of pending messages that are due from a time on, in this order.

    `get` returns the response of a broker to a request for a path.
    """
    path, after = f"/api/v1/delay/pending/messages?topic={TOPIC}&fromMs={from_ms}&limit=100", ""
    for number in itertools.count():
        if number == pages:
            return
        page = get(path + after)
        yield [(row["messageId"], row["dueMs"]) for row in page["messages"]]
        if page["next"] is None:
            return
        after = f"&after={page['next']}"
