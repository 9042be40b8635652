"""Subscriptions of consumers: tags by name, `*`, or an SQL92 expression over properties."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.message.hashing import java_hash
from delaymq.message.names import topic_problem
from delaymq.protocol.bodies import SubscriptionData

ALL = "*"
TAG_TYPE = "TAG"
SQL_TYPE = "SQL92"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic and a filter. Brokers filter by hashes of tags, `accepts` by the tags themselves; SQL92 is evaluated
    by the broker only.
    """

    topic: str
    expression: str = ALL
    """`*`, or tags such as `TagA || TagB`; or SQL92."""
    version_ms: int = 0
    """Creation time: brokers keep the newest subscription of a group."""
    expression_type: str = TAG_TYPE
    tags: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        problem = topic_problem(self.topic)
        if problem is not None:
            raise ValueError(problem)
        if self.is_sql and not self.expression.strip():
            raise ValueError("the SQL92 expression is empty: use a condition such as price > 5")
        is_all = self.is_sql or self.expression.strip() in ("", ALL)
        object.__setattr__(self, "tags", frozenset() if is_all else split_tags(self.expression))

    @property
    def is_sql(self) -> bool:
        """Whether the expression is SQL92."""
        return self.expression_type == SQL_TYPE

    def accepts(self, tags: str) -> bool:
        """Return whether a message with these tags matches."""
        return not self.tags or tags in self.tags

    def data(self) -> SubscriptionData:
        """Return the subscription as sent in heartbeats."""
        ordered = sorted(self.tags)
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression.strip() or ALL,
            tags_set=ordered,
            code_set=[java_hash(tag) for tag in ordered],
            sub_version=self.version_ms,
            expression_type=self.expression_type,
        )


def subscription_to(topic: str, tags: str, sql: str | None, version_ms: int) -> Subscription:
    """Return a subscription by tags, or by SQL92 if given. ValueError if both are given or one is illegal."""
    if sql is None:
        return Subscription(topic, tags, version_ms)
    if tags != ALL:
        raise ValueError("filter by tags or by sql, not both: in SQL92, filter tags with TAGS = 'TagA'")
    return Subscription(topic, sql, version_ms, SQL_TYPE)


def split_tags(expression: str) -> frozenset[str]:
    """Return the tags of `A || B`. ValueError if there is none."""
    tags = frozenset(word.strip() for word in expression.split("||")) - {""}
    if not tags:
        raise ValueError(f"{expression!r} contains no tag: use * for all, or tags such as TagA || TagB")
    return tags
