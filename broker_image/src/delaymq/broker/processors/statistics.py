"""Statistics of a topic, a group or a queue under RocketMQ's names (315)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from delaymq.broker.requests.errors import system_error
from delaymq.broker.statistics import Figures
from delaymq.broker.statistics.names import Windows, queue_key, windows_of
from delaymq.protocol.bodies import BrokerStatistics, StatisticsFigures
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import ViewBrokerStatsDataRequestHeader
from delaymq.store.consume_queue import ENTRY

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

_SHOWN_CHARACTERS: Final = 512


def view_statistics(broker: Broker, session: Session, command: Command) -> Response:
    """Handle VIEW_BROKER_STATS_DATA (315): return sum, rate and average of the last minute, hour and day.

    The figures are current, not those of the last sample.
    """
    header = ViewBrokerStatsDataRequestHeader.from_fields(command.fields)
    name, key = header.stats_name, header.stats_key
    if name in ("GROUP_GET_FALL_SIZE", "GROUP_GET_FALL_TIME"):
        windows = _fall(broker, key, name == "GROUP_GET_FALL_TIME")
    else:
        elapsed_ms = broker.stats.advance(broker.now_ms())
        windows = windows_of(broker.stats.by_key, name, key, broker.config.broker_cluster_name, elapsed_ms)
    if windows is None:
        shown = f"<{name[:_SHOWN_CHARACTERS]}> <{key[:_SHOWN_CHARACTERS]}>"
        raise system_error(f"The stats {shown} not exist")
    return Response(body=BrokerStatistics(*(StatisticsFigures(*figures) for figures in windows)).encode())


def _fall(broker: Broker, key: str, in_time: bool) -> Windows | None:
    """Return how far a group is behind in a queue, in bytes of the log or in ms.

    The value is current, so it is the same for all windows. RocketMQ's broker only logs it.
    """
    queue_id, topic, group = queue_key(key)
    offset = broker.offsets.get(topic, group, queue_id)
    if offset is None:
        return None
    behind = 0
    if in_time:
        stored_ms = broker.store.store_time_of(topic, queue_id, offset)
        behind = 0 if stored_ms is None else max(broker.now_ms() - stored_ms, 0)
    else:
        entry = broker.store.read_entries(topic, queue_id, offset, 1)
        if entry:
            behind = broker.store.end_offset - ENTRY.unpack_from(entry)[0]
    figures = Figures(behind, 0.0, 0.0)
    return figures, figures, figures
