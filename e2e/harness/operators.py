"""Administrators' requests about groups, members and broker statistics, sent by RocketMQ's administration client."""

from dataclasses import dataclass
from typing import Any

from harness.clients import Workbench


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Statistics of a time window."""

    sum: int
    tps: float
    avgpt: float


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Statistics of a name and key."""

    minute: Figures
    hour: Figures
    day: Figures

    @property
    def sum(self) -> int:
        """Sum over a day; windows that RocketMQ's broker has not sampled yet are 0."""
        return self.day.sum or self.hour.sum or self.minute.sum


class Operators:
    """Requests of a workbench's administrator. Rejections by the broker raise ClientError."""

    def __init__(self, clients: Workbench) -> None:
        self._clients = clients

    def ask(self, operation: str, **fields: Any) -> Any:
        return self._clients.admin.call(f"operators.{operation}", broker=self._clients.broker_address, **fields)

    def running_info(self, group: str, member: str, *, jstack: bool = False) -> dict[str, Any]:
        info: dict[str, Any] = self.ask("runningInfo", group=group, member=member, jstack=jstack)
        return info

    def consume_directly(self, group: str, member: str, message_id: str, *, topic: str | None = None) -> dict[str, Any]:
        """Consume a message, identified by offset message id, or by unique id if the topic is given."""
        fields = {"messageId": message_id} if topic is None else {"messageId": message_id, "topic": topic}
        result: dict[str, Any] = self.ask("consumeDirectly", group=group, member=member, **fields)
        return result

    def status(self, topic: str, group: str, *, member: str = "") -> dict[str, dict[int, int]]:
        """Return client ID → queue ID → offset."""
        answer = self.ask("status", topic=topic, group=group, member=member)
        return {client_id: _by_queue(offsets) for client_id, offsets in answer.items()}

    def reset(self, topic: str, group: str, timestamp_ms: int, *, force: bool, cpp: bool = False) -> dict[int, int]:
        """Return queue ID → offset at which members continue."""
        return _by_queue(self.ask("reset", topic=topic, group=group, timestamp=timestamp_ms, force=force, cpp=cpp))

    def clone(self, source: str, destination: str, topic: str, *, offline: bool = False) -> None:
        self.ask("cloneOffsets", source=source, destination=destination, topic=topic, offline=offline)

    def corrections(self, topic: str, group: str, *, left_out: list[str] | None = None) -> dict[int, int]:
        """Return queue ID → minimum offset of all groups."""
        return _by_queue(self.ask("corrections", topic=topic, group=group, leftOut=left_out or []))

    def statistics(self, name: str, key: str) -> Statistics:
        answer = self.ask("statistics", name=name, key=key)
        return Statistics(**{window: Figures(**figures) for window, figures in answer.items()})

    def consume_tps(self, topic: str, group: str) -> float:
        return float(self.ask("consumeTps", topic=topic, group=group))

    def time_spans(self, topic: str, group: str) -> dict[int, dict[str, int]]:
        """Return queue ID → `min`, `max`, `consumed`, `delay`, all in ms."""
        return {int(queue_id): span for queue_id, span in self.ask("timeSpans", topic=topic, group=group).items()}

    def consume_queue(
        self, topic: str, queue_id: int, *, index: int = 0, count: int = 10, group: str | None = None
    ) -> dict[str, Any]:
        fields = {"topic": topic, "queueId": queue_id, "index": index, "count": count, "group": group}
        answer: dict[str, Any] = self.ask("consumeQueue", **fields)
        return answer


def _by_queue(offsets: dict[str, int]) -> dict[int, int]:
    return {int(queue_id): offset for queue_id, offset in offsets.items()}
