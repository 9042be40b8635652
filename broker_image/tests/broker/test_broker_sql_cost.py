"""Costs of SQL92 expressions: bounded memory, and bounded work per time slice."""

import itertools
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from delaymq.broker.filters import SQL_TYPE, CompileWork, NotNowError, compile_expression, expressions
from delaymq.broker.filters.cost import (
    SHARE_OF_ONE,
    WINDOW_MS,
    WORK_PER_WINDOW,
    Compiled,
    bytes_of,
)
from delaymq.broker.filters.sql import parser
from delaymq.broker.filters.sql.lexer import Tokens
from delaymq.broker.filters.sql.parser import MAX_COMPARISONS
from delaymq.broker.requests.results import Held
from delaymq.protocol.bodies import CheckClient, SubscriptionData
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.errors import RequestError
from delaymq_testing.broker.harness import Harness, response_of


def largest(number: int) -> str:
    return " AND ".join(f"x{number}_{at} > {at}" for at in range(MAX_COMPARISONS))


@pytest.mark.parametrize(
    "text",
    [
        " AND ".join(f"NOT (n{at} = m{at})" for at in range(60)),
        " OR ".join(f"n{at} = 'some value {at}'" for at in range(40)),
        "n IN (" + ", ".join(f"'{at}'" for at in range(4_000)) + ")",
        " OR ".join(f"n{at} IN (" + ", ".join(f"'{at}-{v}'" for v in range(28)) + ")" for at in range(100)),
        "n BETWEEN 1 AND 2",
        "a = ",
    ],
)
def test_cached_expressions_stay_within_their_memory_limit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "_sql", Compiled(64 << 20))
    if not text.endswith("= "):
        compile_expression(SQL_TYPE, "warm = 1")
    copies = 6
    texts = [text.replace("n", f"name{copy}") for copy in range(copies)]
    before = expressions._sql.bytes
    tracemalloc.start()
    try:
        for each in texts:
            expressions._sql_filter(each, None)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken <= expressions._sql.bytes - before + (64 << 10)


def test_least_recently_used_expression_is_evicted_first() -> None:
    kept: Compiled[str] = Compiled(100)
    for name in "abcd":
        kept.put(name, name.upper(), 25)
    assert kept.get("a") == "A"
    kept.put("e", "E", 25)
    assert [kept.get(name) for name in "abcde"] == ["A", None, "C", "D", "E"]
    kept.put("f", "F", 1_000)  # alone it is always kept
    assert [kept.get(name) for name in "acdef"] == [None, None, None, None, "F"]
    assert (len(kept), kept.bytes) == (1, 1_000)
    assert kept.get("g") is None


def test_changing_expressions_use_bounded_memory_and_keep_used_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "_sql", Compiled(20 * bytes_of(largest(1_000), MAX_COMPARISONS)))
    mine = compile_expression(SQL_TYPE, "mine = 1")
    for number in range(100):
        compile_expression(SQL_TYPE, largest(number))
        assert compile_expression(SQL_TYPE, "mine = 1") is mine
    assert 20 <= len(expressions._sql) <= 25


class Window:
    """Compile work, with a clock of the test's own and a new connection each time."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.work = CompileWork(lambda: self.now_ms)
        self.askers = itertools.count(1)

    def compile(self, text: str, asker: int = 0) -> None:
        compile_expression(SQL_TYPE, text, self.work, asker or next(self.askers))

    def refuses(self, text: str, asker: int = 0) -> bool:
        try:
            self.compile(text, asker)
        except NotNowError:
            return True
        return False


def test_largest_expression_defers_the_next_new_one_to_the_next_window() -> None:
    window = Window()
    for number in range(20):
        window.compile(f"window = 'small {number}'")
    window.compile(largest(10_001))
    assert window.refuses("window = 'late'")
    window.compile(largest(10_001))  # it is kept
    compile_expression(SQL_TYPE, "window = 'of the broker itself'")
    window.now_ms = WINDOW_MS
    window.compile("window = 'late'")
    window.now_ms = 0  # a clock that was set back
    window.compile("window = 'set back'")


def test_connection_waits_after_exceeding_its_share() -> None:
    window = Window()
    hostile = 1_000
    window.compile(largest(10_002), hostile)
    units = window.work._spent
    waited = 0
    while window.refuses("share = 'again'", hostile):
        window.now_ms += WINDOW_MS
        waited += 1
        window.compile(f"share = 'of another {waited}'")
    assert waited == (units - SHARE_OF_ONE) // SHARE_OF_ONE + 1


def test_half_of_a_window_is_reserved_for_idle_connections() -> None:
    window = Window()
    hostile = range(1_000, 1_100)
    window.compile("half = 'begin'")
    window.work._of_one = dict.fromkeys(hostile, 1)
    compiled = sum(not window.refuses(f"half = {asker}", asker) for asker in hostile)
    assert window.work._spent < WORK_PER_WINDOW // 2 + 2
    assert 0 < compiled < len(hostile)
    window.compile("half = 'polite'")


def test_invalid_expressions_count_as_work() -> None:
    window = Window()
    codes = []
    for number in range(WORK_PER_WINDOW + 1):
        with pytest.raises(RequestError) as refused:
            window.compile(f"wrong{number} = ")
        codes.append(refused.value.code)
    assert codes == [ResponseCode.SUBSCRIPTION_PARSE_FAILED] * WORK_PER_WINDOW + [ResponseCode.SYSTEM_BUSY]


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "-" * 30_000 + "1",
        "--" * 16_000,
        "a = " + "0" * 32_000,
        "a = 1" + "\n" + "-" * 30_000,
        "NOT " * 8_000,
        "(" * 32_000,
    ],
)
def test_invalid_text_is_tokenized_only_at_its_beginning(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Tokens] = []

    class Watched(Tokens):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            read.append(self)

    monkeypatch.setattr(parser, "Tokens", Watched)
    with suppress(parser.SqlError):
        parser.parse(text)
    assert len(read[0]._known) <= 2 * parser.MAX_DEPTH


def test_constant_conditions_count_as_work() -> None:
    assert parser.parse(" OR ".join(["TRUE"] * 200)).cost == 199
    with pytest.raises(parser.SqlError, match="more than 256 conditions"):
        parser.parse(" OR ".join(["TRUE"] * 257))
    parser.parse(largest(1))


def sql_pull(harness: Harness, text: str, **fields: Any) -> Any:
    return harness.pull(subscription=text, expressionType=SQL_TYPE, **fields)


def test_pull_deferred_by_its_filter_retries_without_loss(open_harness: Any) -> None:
    harness = open_harness(enable_property_filter=True)
    harness.send(properties={"wanted": "1"})
    for number in range(20_000, 20_003):
        sql_pull(harness, largest(number))
    # This is not an error: clients pull again at the same offset, immediately.
    answer = response_of(sql_pull(harness, "wanted = 1 AND late = 0 OR wanted = 1"))
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
    assert answer.fields["maxOffset"] == "1"
    # One that may wait is held for a moment, whatever arrives.
    held = sql_pull(harness, "wanted = 1 OR wanted = 1", sysFlag=6, suspendTimeoutMillis=20_000)
    assert isinstance(held, Held)
    assert not held.matches(0)
    assert held.deadline_ms == harness.clock.now_ms
    harness.clock.advance(10 * WINDOW_MS)
    found = held.resume(True)
    assert (response_of(found).code, response_of(found).fields["nextBeginOffset"]) == (ResponseCode.SUCCESS, "1")


def test_consumer_starting_during_compilation_is_not_rejected(open_harness: Any) -> None:
    harness = open_harness(enable_property_filter=True)

    def check(text: str) -> int:
        subscription = SubscriptionData("T", text, expression_type=SQL_TYPE)
        body = CheckClient("client", "G", subscription).encode()
        return int(harness.answer(RequestCode.CHECK_CLIENT_CONFIG, body=body).code)

    assert check("a = ") == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert check(largest(30_000)) == ResponseCode.SUCCESS
    assert check("b = ") == ResponseCode.SUCCESS
    harness.clock.advance(10 * WINDOW_MS)
    assert check("b = ") == ResponseCode.SUBSCRIPTION_PARSE_FAILED
