"""Validation of offset commits: accepted for existing queues, and for groups with an offset in the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delaymq.broker.groups.consumer_offsets import MAX_ENTRIES, MAX_KEY_CHARACTERS, MAX_KEYS
from delaymq.broker.requests.errors import system_error, topic_missing
from delaymq.message import names
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.broker.groups.activity import GroupActivity
    from delaymq.broker.groups.consumer_offsets import OffsetTable
    from delaymq.broker.groups.subscription_groups import Groups
    from delaymq.broker.topics import Topics
    from delaymq.protocol.errors import RequestError

NOT_KEPT: Final = (
    f"the offset is not kept: the broker keeps up to {MAX_ENTRIES} offsets for {MAX_KEYS} pairs of topic and group with"
    f" {MAX_KEY_CHARACTERS} characters in total, and only for legal group names; delete unused groups with their"
    " offsets (mqadmin deleteSubGroup -r true)"
)
_SHOWN_CHARACTERS: Final = 128
_logger = logging.getLogger(__name__)


class OffsetCommits:
    """Commits of one broker's clients."""

    def __init__(
        self, offsets: OffsetTable, topics: Topics, groups: Groups, activity: GroupActivity, now_ms: Callable[[], int]
    ) -> None:
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._activity = activity
        self._now_ms = now_ms
        self._throttled = ThrottledLogger(_logger, now_ms)

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> RequestError | None:
        """Commit an offset, or return the error, which is counted and logged because most clients receive no response.

        A commit for an unknown topic comes from a consumer that is not yet notified of the topic's deletion, or from a
        client that tries to fill the table.
        """
        problem = self._problem(topic, group, queue_id)
        if problem is None:
            if self._offsets.commit(topic, group, queue_id, offset):
                self._activity.note_activity(group, self._now_ms())
                return None
            problem = system_error(NOT_KEPT)
        self._offsets.ignored += 1
        self._throttled.warning(
            "offset commit ignored: %s",
            problem.remark,
            topic=topic[:_SHOWN_CHARACTERS],
            group=group[:_SHOWN_CHARACTERS],
        )
        return problem

    def _problem(self, topic: str, group: str, queue_id: int) -> RequestError | None:
        config = self._topics.table.get(topic)
        if config is not None:
            count = max(config.read_queue_nums, config.write_queue_nums)
        else:
            count = self._queues_of_a_group(topic)
        # A consumer may still finish queues that the topic no longer has.
        if 0 <= queue_id < count or self._offsets.get(topic, group, queue_id) is not None:
            return None
        if count == 0 and config is None:
            return topic_missing(topic)
        shown = topic[:_SHOWN_CHARACTERS]
        return system_error(f"queueId={queue_id} is out of range: topic[{shown}] has {count} queues")

    def _queues_of_a_group(self, topic: str) -> int:
        """Return the queue count of a group's retry or dead-letter topic, which is created with its first message."""
        if topic.startswith(names.RETRY_PREFIX):
            group = self._groups.table.get(topic[len(names.RETRY_PREFIX) :])
            return 0 if group is None else max(group.retry_queue_nums, 1)
        if topic.startswith(names.DLQ_PREFIX) and topic[len(names.DLQ_PREFIX) :] in self._groups.table:
            return 1
        return 0
