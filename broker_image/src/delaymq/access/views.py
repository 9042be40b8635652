"""What an account may see of topics and groups, if metadata is shown to their users only (`aclMetadata=own`)."""

from __future__ import annotations

from collections.abc import Container, Iterable

from delaymq.access import PUB, SUB
from delaymq.access.accounts import Account
from delaymq.access.permissions import owned
from delaymq.message.names import DLQ_PREFIX, INTERNAL_TOPICS, RETRY_PREFIX


def sees_all(account: Account) -> bool:
    """Return whether an account may see the metadata of all topics and groups."""
    return account.admin or bool(account.entry.role)


class View:
    """The topics and groups that an account may see."""

    __slots__ = ("_account", "_reply_topic")

    def __init__(self, account: Account, reply_topic: str) -> None:
        """`reply_topic` is that of the cluster; empty: no topic is."""
        self._account = account
        self._reply_topic = reply_topic

    @property
    def access_key(self) -> str:
        """The account's access key."""
        return self._account.entry.access_key

    def shows(self, topic: str) -> bool:
        """Return whether the account may send to the topic or consume it."""
        return bool(owned(self._account, topic, self._reply_topic) & (PUB | SUB))

    def shows_group(self, group: str) -> bool:
        """Return whether the account may consume as the group."""
        return bool(owned(self._account, RETRY_PREFIX + group, self._reply_topic) & SUB)

    def shows_progress(self, topic: str, group: str) -> bool:
        """Return whether the account may consume the topic as the group."""
        return bool(owned(self._account, topic, self._reply_topic) & SUB) and self.shows_group(group)

    def topics(self, of: Iterable[str], known: Container[str]) -> list[str]:
        """Return the visible topics among `of`, with `known` as the same topics in a form for lookups.

        Without default permissions, only the names in the account's rules are looked up.
        """
        account = self._account
        if not (account.topic_permission | account.group_permission) & (PUB | SUB):
            named = [name for name in account.permissions if name in known and self.shows(name)]
            return named + [name for name in self._dead_letters() if name in known and self.shows(name)]
        # Most names are decided by the default alone.
        granted = bool(account.topic_permission & (PUB | SUB))
        others = {*account.permissions, *INTERNAL_TOPICS, self._reply_topic}
        return [name for name in of if (granted if name[:1] != "%" and name not in others else self.shows(name))]

    def _dead_letters(self) -> list[str]:
        named = self._account.permissions
        topics = (DLQ_PREFIX + name.removeprefix(RETRY_PREFIX) for name in named if name.startswith(RETRY_PREFIX))
        return [topic for topic in topics if topic not in named]
