"""A subscription's type and text, compiled once: later pulls and held ones share what came out."""

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
# Thousands of ordinary ones: what is not kept is compiled for each pull.
KEPT_SQL_BYTES: Final = 16 << 20
# Tags: the largest set of hashes takes 100 KB, and a client can ask with another one each time.
SMALL_TAGS_CHARACTERS: Final = 256
SMALL_TAGS_KEPT: Final = 2_048
LARGE_TAGS_KEPT: Final = 128

_log = ThrottledLogger(logging.getLogger(__name__), clock.now_ms)


@dataclass(frozen=True, slots=True)
class Filter:
    """What a subscription lets pass: both tests, where there are two, must agree."""

    tags: Callable[[int], bool] | None = None
    """Takes a tags code as queues keep it; None: any."""
    properties: Callable[[bytes], bool] | None = None
    """Takes the raw property bytes of a record; None: any. Never raises."""
    cost: int = 1
    """How much work `properties` is, in comparisons: bounds how many records one pull looks at."""
    tag: bytes = b""
    """The low 32 bits of the only tags code that `tags` lets pass; empty: there are several, or any."""
    needle: bytes = b""
    """What the property bytes of every record contain that `properties` lets pass; empty: no such bytes are known."""


EVERYTHING: Final = Filter()


def compile_expression(
    expression_type: str | None, text: str, work: CompileWork | None = None, asker: int = 0
) -> Filter:
    """The filter of a subscription. RequestError 23 with the place of the mistake, 1 for a type that does not exist.

    With `work` NotNowError too, when many others were compiled just now, or many for the connection `asker`.
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
    return Filter(tags=matcher_of(codes), tag=next(iter(codes)).to_bytes(4, "big") if len(codes) == 1 else b"")


def _sql_filter(text: str, work: CompileWork | None, asker: int = 0) -> Filter | str:
    """The filter, or why there is none: refusals are kept as well, since clients ask again and again."""
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
            _log.warning("of an SQL92 expression only the beginning counts, as in RocketMQ: %s", parsed.ignored)
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
