"""Tables of a plain slave: replaced by those of its master, which it requests regularly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaymq.broker import topics
from delaymq.broker.delivery import offsets as delay_offsets
from delaymq.broker.groups import consumer_offsets, subscription_groups
from delaymq.message import names
from delaymq.protocol.bodies import DelayOffsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from delaymq.broker.groups.consumer_offsets import OffsetTable
    from delaymq.broker.groups.subscription_groups import Groups
    from delaymq.broker.topics import Topics
    from delaymq.store.disk.config_files import ConfigFiles


class FollowedTables:
    """Tables that replace those of a broker that follows. Bodies that are equal to the last ones change nothing."""

    def __init__(self, topic_table: Topics, group_table: Groups, offset_table: OffsetTable, files: ConfigFiles) -> None:
        self._topic_table = topic_table
        self._group_table = group_table
        self._offset_table = offset_table
        self._files = files
        self._topics = self._groups = self._offsets = self._delay_offsets = b""

    def take_definitions(self, topic_body: bytes, group_body: bytes) -> None:
        """Replace topics and groups with the bodies of responses 21 and 201. RequestError: nothing has changed."""
        stored_topics = topics.parse_table(topic_body)
        stored_groups = subscription_groups.parse_table(group_body)
        own_topics, own_groups = self._topic_table, self._group_table
        if topic_body != self._topics:
            self._topics = topic_body
            for name in own_topics.table.keys() - stored_topics.topic_config_table.keys():
                if not own_topics.is_system(name):
                    own_topics.remove(name)
            own_topics.restore(stored_topics)
            own_topics.dirty = True
        if group_body != self._groups:
            self._groups = group_body
            for name in own_groups.table.keys() - stored_groups.subscription_group_table.keys():
                if name not in names.SYSTEM_GROUPS:
                    own_groups.remove(name)
            own_groups.restore(stored_groups)
            own_groups.dirty = True

    def take_offsets(self, offset_body: bytes, delay_body: bytes) -> Callable[[], None] | None:
        """Replace consumer offsets, with the body of response 43.

        Returns a function that writes the positions of delay levels (response 45), to be called in any thread; None if
        they are unchanged. The log must contain what the offsets refer to, durably: otherwise, messages would count as
        consumed or delivered that are stored here only later. RequestError: nothing has changed.
        """
        stored = consumer_offsets.parse_table(offset_body)
        positions = DelayOffsets.decode(delay_body, max_bytes=delay_offsets.MAX_FILE_BYTES)
        table = self._offset_table
        if offset_body != self._offsets:
            self._offsets = offset_body
            table.restore(stored)
            table.unreadable = ()
            table.dirty = True
        if delay_body == self._delay_offsets:
            return None
        data = positions.encode()

        def write() -> None:
            self._files.save(delay_offsets.FILE_NAME, data, max_bytes=delay_offsets.MAX_FILE_BYTES)
            self._delay_offsets = delay_body

        return write
