"""Compilation of a subscription's type and text, cached and shared by later pulls and held pulls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from delaymq import clock
from delaymq.broker.filters.cost import Compiled, CompileWork, bytes_of
from delaymq.broker.filters.tags import is_tag_type, matcher_of, tag_codes
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError
from delaymq.throttled_log import ThrottledLogger

SQL_TYPE: Final = "SQL92"
KEPT_SQL_BYTES: Final = 16 << 20
"""Holds thousands of ordinary expressions. An expression that is not cached is compiled for each pull."""
# Limits of cached tags; the largest set of hashes takes 100 KB, and a client can use a different one in each pull:
SMALL_TAGS_CHARACTERS: Final = 256
SMALL_TAGS_KEPT: Final = 2_048
LARGE_TAGS_KEPT: Final = 128

_throttled = ThrottledLogger(logging.getLogger(__name__), clock.now_ms)


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of a subscription. If it has both tests, a message must pass both."""

    tags: Callable[[int], bool] | None = None
    """Takes a tags code as stored in consume queues. None: any message passes."""
    properties: Callable[[bytes], bool] | None = None
    """Takes the raw property bytes of a record. Never raises. None: any message passes."""
    cost: int = 1
    """Cost of `properties` in comparisons, which bounds the records that one pull examines."""
    codes: bytes = b""
    """The low 32 bits of each tags code that `tags` accepts, in ascending order; empty if they are unknown."""
    needle: bytes = b""
    """Bytes that the properties of every matching record contain; empty if no such bytes are known."""


CODE_BYTES: Final = 4
"""Size of each code in `Filter.codes`."""
EVERYTHING: Final = Filter()


def compile_expression(
    expression_type: str | None, text: str, work: CompileWork | None = None, asker: int = 0
) -> Filter:
    """Return the filter of a subscription.

    Raises RequestError 23 with the position of a syntax error, and 1 for an unknown type. With `work`, also raises
    NotNowError if many expressions were compiled recently, overall or for the connection `asker`.
    """
    if is_tag_type(expression_type):
        return _small_tags(text) if len(text) <= SMALL_TAGS_CHARACTERS else _large_tags(text)
    if expression_type != SQL_TYPE:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {str(expression_type)[:32]}:"
            f" subscribe by TAG or {SQL_TYPE}",
        )
    found = _sql.get(text)
    if found is None:
        found = _sql_filter(text, work, asker)
    if isinstance(found, str):
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, found)
    return found


def _tag_filter(text: str) -> Filter:
    codes = tag_codes(text)
    if codes is None:
        return EVERYTHING
    return Filter(tags=matcher_of(codes), codes=b"".join(code.to_bytes(CODE_BYTES, "big") for code in sorted(codes)))


def _sql_filter(text: str, work: CompileWork | None, asker: int = 0) -> Filter | str:
    """Return the filter, or the error. Errors are cached as well, because clients repeat their requests."""
    from delaymq.broker.filters.sql import codegen
    from delaymq.broker.filters.sql.parser import SqlError, parse
    from delaymq.broker.filters.sql.prefilter import needle_of

    if work is not None:
        work.begin(asker)
    found: Filter | str
    comparisons = 0
    try:
        parsed = parse(text)
        if parsed.ignored:
            _throttled.warning("the end of an SQL92 expression was ignored, as in RocketMQ: %s", parsed.ignored)
        needle = needle_of(parsed.condition)
        found = Filter(properties=codegen.matcher_of(parsed.condition), cost=parsed.cost, needle=needle)
        comparisons = parsed.cost
    except SqlError as error:
        found = f"Invalid MessageSelector: {error}"
    if work is not None:
        work.spend(asker, text, comparisons)
    _sql.put(text, found, bytes_of(text, comparisons))
    return found


_small_tags = lru_cache(maxsize=SMALL_TAGS_KEPT)(_tag_filter)
_large_tags = lru_cache(maxsize=LARGE_TAGS_KEPT)(_tag_filter)
_sql: Final[Compiled[Filter | str]] = Compiled(KEPT_SQL_BYTES)
