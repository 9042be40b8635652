"""Tag expressions: `*` or `TagA || TagB`, compared by the hashes in the consume queues."""

from __future__ import annotations

from collections.abc import Callable

from delaymq.message.hashing import java_hash
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError

MAX_TAGS = 1_024
"""An expression is compared with every message of a queue. Hand-written lists are shorter."""
MAX_TAGS_CHARACTERS = 65_536
"""Maximum length of an expression. Otherwise a heartbeat could contain megabytes, which would be hashed and kept."""
TAG_TYPE = "TAG"

Matcher = Callable[[int], bool]


def matches_all(tags_code: int) -> bool:
    """Accept every message."""
    return True


def matches_nothing(tags_code: int) -> bool:
    """Accept no message: the filter of a pull that waits for something other than a message."""
    return False


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether an expression of this type consists of tags, which is the default of clients."""
    return not expression_type or expression_type == TAG_TYPE


def tag_matcher(expression: str) -> Matcher | None:
    """Return the filter for `expression`, None if it accepts everything. Raises RequestError 23 if it has no tag."""
    codes = tag_codes(expression)
    return None if codes is None else matcher_of(codes)


def matcher_of(codes: frozenset[int]) -> Matcher:
    """Return the filter for these codes.

    As in RocketMQ, only the low 32 bits are compared, so other tags with the same hash pass as well.
    """

    def matches(tags_code: int) -> bool:
        return tags_code & 0xFFFFFFFF in codes

    return matches


def tag_codes(expression: str) -> frozenset[int] | None:
    """Return the low 32 bits of the tags' hashes, None for any tag. Raises RequestError 23 if there is no tag."""
    if not expression or expression == "*":
        return None
    tags = []
    if len(expression) <= MAX_TAGS_CHARACTERS:
        tags = [tag for tag in (word.strip() for word in expression.split("||")) if tag]
    if not tags or len(tags) > MAX_TAGS:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"{expression[:64]!r} is not a tag expression: write * or up to {MAX_TAGS} tags joined by ||,"
            f" at most {MAX_TAGS_CHARACTERS} characters",
        )
    return frozenset(java_hash(tag) & 0xFFFFFFFF for tag in tags)
