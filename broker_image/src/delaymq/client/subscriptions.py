"""Which messages of a topic a consumer wants: tags by name, or `*`."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.message.hashing import java_hash
from delaymq.message.names import topic_problem
from delaymq.protocol.bodies import SubscriptionData

ALL = "*"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic and its tags; brokers filter by hashes of the tags, `accepts` by the tags themselves."""

    topic: str
    expression: str = ALL
    """`*`, or tags such as `TagA || TagB`."""
    version_ms: int = 0
    """When it was made: brokers keep the newest of a group."""
    tags: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        problem = topic_problem(self.topic)
        if problem is not None:
            raise ValueError(problem)
        words = frozenset() if self.expression.strip() in ("", ALL) else split_tags(self.expression)
        object.__setattr__(self, "tags", words)

    def accepts(self, tags: str) -> bool:
        """Whether a message with these tags is wanted."""
        return not self.tags or tags in self.tags

    def data(self) -> SubscriptionData:
        """What heartbeats tell of it."""
        ordered = sorted(self.tags)
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression.strip() or ALL,
            tags_set=ordered,
            code_set=[java_hash(tag) for tag in ordered],
            sub_version=self.version_ms,
            expression_type="TAG",
        )


def split_tags(expression: str) -> frozenset[str]:
    """The tags of `A || B`; ValueError when there is none."""
    tags = frozenset(word.strip() for word in expression.split("||")) - {""}
    if not tags:
        raise ValueError(f"{expression!r} names no tag: write * for all, or tags such as TagA || TagB")
    return tags
