"""Storing of plain sends and ends of transactions by one call of the compiled kernel `SendEncoder` (docs/kernels.md).

The kernel stops at the first request among the received bytes that is anything else. That request, and those after it,
are handled by their processors, so their order is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from delaymq import kernels
from delaymq.broker.delivery.delay_rewrite import MARK_ROOM_BYTES, TIMED_ROOM_BYTES
from delaymq.broker.delivery.timed.requests import UNITS_MS
from delaymq.broker.sending.admission import RULED
from delaymq.broker.statistics.put_times import SLOW_S
from delaymq.broker.transactions.records import (
    COPIED_MARK,
    MAX_HALF_PROPERTIES_BYTES,
    ROLLED_BACK_MARK,
    RULED_IN_HALF,
)
from delaymq.message import names
from delaymq.message.properties import MAX_PROPERTIES_BYTES
from delaymq.protocol.command import FRAME_LENGTHS_BYTES, Command, Response, encode_response
from delaymq.protocol.frame import BUSY_BUFFER_BYTES
from delaymq.schedule.timeline.timeline import TIMELINE_QUEUE

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session
    from delaymq.broker.transactions import TransactionSettings
    from delaymq.config import BrokerConfig
    from delaymq.store.plain_runs import Sent, SentDelay

AnswerParts = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, str]
"""Parts of the header of a response: up to the physical offset in the id, up to the queue id, up to the queue offset,
up to the opaque, and the rest. With a recall handle, two parts replace the fourth: up to the handle, and up to the
opaque. The last element is the name of the broker in recall handles."""

_STARTS: Final = b'{"code":310,', b'{"code":37,'
"""Starts of the header of a send and of the end of a transaction, as nearly all clients write it. The kernel is not
called for other requests."""
_ID, _QUEUE_ID, _QUEUE_OFFSET, _HANDLE, _OPAQUE = "<id>", "<queue>", "<offset>", "<handle>", 1_234_567_890
_NOTHING: Final = (0, b"", 0)
_MIN_SIGNED_BYTES: Final = 128
"""Every signed request that the kernel takes is longer: the names and separators of its fields are."""
_NO_BODIES: Final = -1, -1
"""Maximum sizes of bodies, so that all delayed messages need rules."""

MAX_REQUESTS: Final = BUSY_BUFFER_BYTES // 64
"""Upper bound of the requests in the bytes of a call: none is as short as this."""

NAMES: Final = names.WAIT, names.CLUSTER, names.ACCOUNT, names.AUTO_CREATE_TOPIC
"""Properties that the broker removes and sets, and the only default topic that a signed send may name."""
TRANSACTION_RULES: Final = (
    names.HALF_TOPIC,
    names.OP_HALF_TOPIC,
    (names.TRANSACTION_PREPARED, names.PRODUCER_GROUP, names.REAL_TOPIC, names.REAL_QUEUE_ID),
    (*RULED_IN_HALF, names.DELAY, *names.TIMER_PROPERTIES),
    COPIED_MARK[1].decode(),
    ROLLED_BACK_MARK[1].decode(),
    MAX_HALF_PROPERTIES_BYTES,
)
"""What the kernel has to know of transactions."""
DELAY_RULES: Final = (
    names.DELAY,
    names.REAL_TOPIC,
    names.REAL_QUEUE_ID,
    names.DUE,
    names.SCHEDULE_TOPIC,
    [*names.MANAGED_DELAY],
    MAX_PROPERTIES_BYTES - MARK_ROOM_BYTES,
    (
        [(name, UNITS_MS.get(name, 0)) for name in names.TIMER_PROPERTIES],
        names.TIMER_OUT_MS,
        names.TIMER_TOPIC,
        MAX_PROPERTIES_BYTES - TIMED_ROOM_BYTES,
    ),
)
"""What the kernel has to know of delayed messages."""


def _made() -> Any:
    kernel = kernels.compiled("SendEncoder")
    if kernel is None:
        return None
    ruled = [*RULED.difference((names.DELAY, *names.TIMER_PROPERTIES)), names.RETRY_TOPIC, names.DELAY_SCHEDULE_ID]
    return kernel(
        ruled, names.OWN_PREFIX, list(names.CLOSED_TO_CLIENTS), names.RETRY_PREFIX, NAMES, TRANSACTION_RULES,
        DELAY_RULES,
    )  # fmt: skip


encoder = _made()
"""The encoder of this process; None without compiled kernels."""


def plain_sends(broker: Broker) -> PlainSends | None:
    """Return the `PlainSends` of a broker; None without compiled kernels.

    Without it, connections do not copy the bytes that they receive. Nor does it exist if a name of the broker is not
    valid UTF-8, as from an environment variable: the kernel needs text.
    """
    names_of_broker = broker.cluster_name + broker.config.broker_name + broker.region
    return None if encoder is None or not _is_utf8(names_of_broker) else PlainSends(broker)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class PlainSends:
    """Stores plain sends and ends of transactions as their processors do.

    Records, responses, statistics and notifications are the same.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._config: BrokerConfig | None = None
        """Configuration to which the parts of a response belong."""
        self._answer: AnswerParts | None = None
        self._settings: TransactionSettings | None = None
        """Settings to which the maximum size of half messages belongs."""
        self._max_half_body_bytes = -1

    def store(self, session: Session, data: bytes) -> tuple[int, bytes, int]:
        """Store what the requests at the start of `data`, which begins with a frame, contain.

        Returns the size of their frames in bytes, the responses, and their number. All responses have to wait for the
        end of the log if any do.
        """
        broker = self._broker
        is_plain = (
            data.startswith(_STARTS, FRAME_LENGTHS_BYTES)
            and broker.writable
            and broker.drain.takes_sends
            and broker.following is None
        )
        if not is_plain:
            return _NOTHING
        account, signer = "", None
        if broker.access is not None and not broker.access.admits(session):
            signing = broker.access.signer(session, len(data) // _MIN_SIGNED_BYTES + 1, len(data))
            if signing is None:
                return _NOTHING
            account = signing.entry.access_key
            signer = account, signing.entry.secret_key.encode(errors="replace"), signing.sends
        if broker.config is not self._config:
            self._config, self._answer = broker.config, answer_parts(broker)
        transactions = broker.transactions
        if transactions.settings is not self._settings:
            self._settings, self._max_half_body_bytes = transactions.settings, transactions.max_half_body_bytes
        pending, end = transactions.ledger.pending.chunks, broker.records.producers_end
        halves = self._max_half_body_bytes, pending, broker.now_ms(), end
        delivery = broker.delivery
        ingress = delivery.ingress
        largest = ingress.max_unchecked_body_bytes, ingress.max_unchecked_timed_body_bytes
        if not delivery.limits.is_unchecked(account):
            largest = _NO_BODIES
        delays = ingress.levels.delays_ms, delivery.limits.settings.topics, *largest, ingress.max_plain_delay_ms

        def encode(*place: object) -> Sent:
            assert encoder is not None
            sent: Sent = encoder.encode(
                data, broker.topics.table, session.remote_host, broker.store_host, broker.max_message_size,
                broker.cluster_name, self._answer, broker.answers_wait, halves, delays, signer, *place,
            )  # fmt: skip
            return sent

        def add_delayed(delayed: Sequence[SentDelay]) -> None:
            delivery.add_sent(delayed, account)

        began = perf_counter()
        sent = broker.store.append_encoded_sends(encode, transactions.take_steps, add_delayed)
        if sent is None:
            return _NOTHING
        took_s = perf_counter() - began
        size, _, _, _, _, sums, responses, steps, delayed, body_bytes = sent
        if responses:
            if took_s >= SLOW_S:
                broker.stats.put_times.slow(took_s)
            broker.stats.last_send_ms = broker.store.last_store_timestamp_ms
        count = self._count(sums, delayed)
        if account and session.usage is not None:
            session.signed_by(account)
            session.usage.sent(count, body_bytes, sum(not group for _, _, _, group in steps))
        broker.announce_arrivals()
        return size, responses, count

    def _count(self, sums: Sequence[tuple[str, int, int, int, int, int]], delayed: Sequence[SentDelay]) -> int:
        """Add messages to the statistics; return their number, without committed copies."""
        stats, count = self._broker.stats, 0
        for topic, messages, stored_bytes, elsewhere, copies, copied_bytes in sums:
            if messages:
                stats.put_all(topic, messages, stored_bytes)
                count += messages
            if elsewhere:
                stats.put_elsewhere(topic, elsewhere)
            if copies:
                stats.committed_all(topic, copies, copied_bytes)
        for topic, queue_id, _, record_bytes, _ in delayed:
            if queue_id != TIMELINE_QUEUE:  # the sums contain the others
                stats.put(topic, record_bytes, names.SCHEDULE_TOPIC, queue_id)
                count += 1
        return count


def answer_parts(broker: Broker) -> AnswerParts:
    """Return the parts of the response to a send, between which its numbers are written."""
    fields = {
        "msgId": f"{broker.message_id_prefix}{_ID}",
        "queueId": _QUEUE_ID,
        "queueOffset": _QUEUE_OFFSET,
        "MSG_REGION": broker.region,
        "TRACE_ON": broker.trace_on,
    }
    to_id, _, rest = _header(fields).partition(_ID.encode())
    to_queue_id, _, rest = rest.partition(_QUEUE_ID.encode())
    to_queue_offset, _, rest = rest.partition(_QUEUE_OFFSET.encode())
    to_opaque, opaque, end = rest.rpartition(str(_OPAQUE).encode())
    _, _, rest = _header(fields | {"recallHandle": _HANDLE}).partition(_QUEUE_OFFSET.encode())
    to_handle, _, rest = rest.rpartition(_HANDLE.encode())
    after_handle, _, _ = rest.rpartition(opaque)
    broker_name = broker.config.broker_name
    return to_id, to_queue_id, to_queue_offset, to_opaque, end, to_handle, after_handle, broker_name


def _header(fields: dict[str, str]) -> bytes:
    return encode_response(Command(0, _OPAQUE), Response(0, None, fields))[FRAME_LENGTHS_BYTES:]
