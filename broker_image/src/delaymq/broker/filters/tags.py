"""Tag expressions: `*` or `TagA || TagB`, compared by the hashes that the consume queues keep."""

from __future__ import annotations

from collections.abc import Callable

from delaymq.message.hashing import java_hash
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError

# An expression is compared with every message of a queue; no client writes a list like this by hand.
MAX_TAGS = 1_024
# All of them together: a heartbeat could bring megabytes, which would be hashed and kept.
MAX_TAGS_CHARACTERS = 65_536
TAG_TYPE = "TAG"

Matcher = Callable[[int], bool]


def matches_all(tags_code: int) -> bool:
    """The filter of those who want everything."""
    return True


def matches_nothing(tags_code: int) -> bool:
    """The filter of a pull that waits for something else than a message."""
    return False


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression of this type is one of tags; clients that state no type mean tags."""
    return not expression_type or expression_type == TAG_TYPE


def tag_matcher(expression: str) -> Matcher | None:
    """The filter for `expression`, None when it lets everything pass; RequestError 23 when it names no tag."""
    codes = tag_codes(expression)
    return None if codes is None else matcher_of(codes)


def matcher_of(codes: frozenset[int]) -> Matcher:
    """The filter for these. Compares the low 32 bits, as RocketMQ does: it lets other tags with the same hash pass."""

    def matches(tags_code: int) -> bool:
        return tags_code & 0xFFFFFFFF in codes

    return matches


def tag_codes(expression: str) -> frozenset[int] | None:
    """The low 32 bits of the tags' hashes, None for any tag; RequestError 23 when the expression names none."""
    if not expression or expression == "*":
        return None
    tags = []
    if len(expression) <= MAX_TAGS_CHARACTERS:
        tags = [tag for tag in (word.strip() for word in expression.split("||")) if tag]
    if not tags or len(tags) > MAX_TAGS:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"{expression[:64]!r} is no tag expression: write * or up to {MAX_TAGS} tags joined by ||,"
            f" at most {MAX_TAGS_CHARACTERS} characters",
        )
    return frozenset(java_hash(tag) & 0xFFFFFFFF for tag in tags)
