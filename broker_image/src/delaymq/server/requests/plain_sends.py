"""Storing of plain sends among received bytes by one call of the compiled kernel `SendEncoder` (docs/kernels.md).

The kernel stops at the first request that is anything but a plain send. That request, and those after it among the
received bytes, are handled by their processors, so their order is kept.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from delaymq import kernels
from delaymq.broker.sending.admission import RULED
from delaymq.broker.statistics.put_times import SLOW_S
from delaymq.message import names
from delaymq.protocol.command import Command, Response, encode_response

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.config import BrokerConfig
    from delaymq.store.plain_runs import Sent

AnswerParts = tuple[bytes, bytes, bytes, bytes, bytes]
"""Parts of the header of a response: up to the physical offset in the id, the queue id, the queue offset, the opaque,
and to the end."""

_START: Final = b'{"code":310,'
"""Start of the header of a send, as nearly all clients write it. The kernel is not called for other requests."""
_START_AT = _FRAME_LENGTHS_BYTES = 8
_ID, _QUEUE_ID, _QUEUE_OFFSET, _OPAQUE = "<id>", "<queue>", "<offset>", 1_234_567_890
_NOTHING: Final = (0, b"")


def _made() -> Any:
    kernel = kernels.compiled("SendEncoder")
    if kernel is None:
        return None
    ruled = [*RULED, names.RETRY_TOPIC, names.DELAY_SCHEDULE_ID]
    return kernel(
        ruled, names.OWN_PREFIX, list(names.CLOSED_TO_CLIENTS), names.RETRY_PREFIX, (names.WAIT, names.CLUSTER)
    )


encoder = _made()
"""The encoder of this process; None without compiled kernels."""


def plain_sends(broker: Broker) -> PlainSends | None:
    """Return the `PlainSends` of a broker; None without compiled kernels, and with access control.

    Without it, connections do not copy the bytes that they receive.
    """
    return None if encoder is None or broker.access is not None else PlainSends(broker)


class PlainSends:
    """Stores plain sends as `processors.send` does: with the same records, responses, statistics and notifications."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._config: BrokerConfig | None = None
        """Configuration to which the parts of a response belong."""
        self._answer: AnswerParts = (b"", b"", b"", b"", b"")

    def store(self, remote_host: bytes, data: bytes) -> tuple[int, bytes]:
        """Store the plain sends at the start of `data`, which begins with a frame.

        Returns the size of their frames in bytes, and the responses. `remote_host` is the producer's address, packed.
        """
        broker = self._broker
        is_plain = (
            data.startswith(_START, _START_AT)
            and broker.writable
            and broker.drain.takes_sends
            and broker.access is None
            and broker.following is None
            and not broker.answers_wait
        )
        if not is_plain:
            return _NOTHING
        if broker.config is not self._config:
            self._config, self._answer = broker.config, answer_parts(broker)

        def encode(*place: object) -> Sent:
            assert encoder is not None
            sent: Sent = encoder.encode(
                data, broker.topics.table, remote_host, broker.store_host, broker.max_message_size, broker.cluster_name,
                self._answer, *place,
            )  # fmt: skip
            return sent

        began = perf_counter()
        sent = broker.store.append_encoded_sends(encode)
        if sent is None:
            return _NOTHING
        took_s = perf_counter() - began
        stats = broker.stats
        if took_s >= SLOW_S:
            stats.put_times.slow(took_s)
        size, _, _, _, _, sums, responses = sent
        for topic, messages, stored_bytes in sums:
            stats.put_all(topic, messages, stored_bytes)
        stats.last_send_ms = broker.store.last_store_timestamp_ms
        broker.announce_arrivals()
        return size, responses


def answer_parts(broker: Broker) -> AnswerParts:
    """Return the parts of the response to a send, between which its numbers are written."""
    fields = {
        "msgId": f"{broker.message_id_prefix}{_ID}",
        "queueId": _QUEUE_ID,
        "queueOffset": _QUEUE_OFFSET,
        "MSG_REGION": broker.region,
        "TRACE_ON": broker.trace_on,
    }
    rest = encode_response(Command(0, _OPAQUE), Response(0, None, fields))[_FRAME_LENGTHS_BYTES:]
    to_id, _, rest = rest.partition(_ID.encode())
    to_queue_id, _, rest = rest.partition(_QUEUE_ID.encode())
    to_queue_offset, _, rest = rest.partition(_QUEUE_OFFSET.encode())
    to_opaque, _, end = rest.rpartition(str(_OPAQUE).encode())
    return to_id, to_queue_id, to_queue_offset, to_opaque, end
