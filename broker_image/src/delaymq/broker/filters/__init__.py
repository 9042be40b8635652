"""Consumers' filters: tags, compared by their hashes, and SQL92 expressions over a message's properties.

`tags`, `expressions` and `cost` are light; `sql` (lexer, parser, code generator) is imported with the first SQL
expression. Filters take a tags code or raw property bytes. They do not depend on queues, records or clients.
"""

from delaymq.broker.filters.cost import CompileWork, NotNowError
from delaymq.broker.filters.expressions import SQL_TYPE, Filter, compile_expression
from delaymq.broker.filters.tags import (
    MAX_TAGS,
    TAG_TYPE,
    Matcher,
    is_tag_type,
    matches_all,
    matches_nothing,
    tag_matcher,
)

__all__ = [
    "MAX_TAGS",
    "SQL_TYPE",
    "TAG_TYPE",
    "CompileWork",
    "Filter",
    "Matcher",
    "NotNowError",
    "compile_expression",
    "is_tag_type",
    "matches_all",
    "matches_nothing",
    "tag_matcher",
]
