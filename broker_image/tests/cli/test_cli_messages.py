"""Bulk sends, browsing without a group, finding messages and dead letters: against a running broker."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from delaymq.cli.terminal.times import format_time, parse_time
from delaymq_testing.cli_running import Done, Standalone, called

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    broker = Standalone(tmp_path_factory.mktemp("broker"))
    with broker.running():
        yield broker


class Ask:
    """Runs commands against the broker."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def __call__(self, *words: str, given: str = "") -> Done:
        return called(*words, environment=self.environment, given=given)

    def json(self, *words: str, given: str = "") -> list[dict[str, object]]:
        done = self(*words, "--json", given=given)
        assert (done.code, done.err) == (0, "")
        return [json.loads(line) for line in done.lines]


@pytest.fixture
def ask(standalone: Standalone) -> Ask:
    return Ask(standalone.environment)


def bodies(rows: list[dict[str, object]]) -> list[object]:
    return [row["body"] for row in rows]


def test_several_texts_are_sent_with_keys_tags_and_properties(ask: Ask) -> None:
    words = ("send", "Many", "a", "b", "--count", "2", "--key", "k1", "--key", "k2", "--keys", "k3", "--tags", "T")
    sent = ask.json(*words, "-p", "color=red", "-p", "size=a=b")
    assert len({row["messageId"] for row in sent}) == 4
    assert list(sent[0]) == [
        "messageId", "offsetMessageId", "status", "broker", "queueId", "queueOffset", "delay", "dueMs",
        "recallHandle",
        "kept",
    ]  # fmt: skip
    got = ask.json("receive", "Many", "--tail", "10")
    assert bodies(got) == ["a", "a", "b", "b"]
    assert all((row["keys"], row["tags"]) == (["k1", "k2", "k3"], "T") for row in got)
    assert all(row["properties"]["color"] == "red" for row in got)  # type: ignore[index]
    assert all(row["properties"]["size"] == "a=b" for row in got)  # type: ignore[index]


def test_lines_of_a_file_or_standard_input_are_messages(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\r\ntwo\n\n\xfft\nlast")
    done = ask("send", "Lines", "--lines", str(tmp_path / "lines"))
    assert (done.code, len(done.lines)) == (0, 4)
    got = ask.json("receive", "Lines", "--tail", "9")
    assert [row.get("body", row.get("bodyBase64")) for row in got] == ["one", "two", "/3Q=", "last"]
    many = "".join(f"{number}\n" for number in range(200))
    [said] = ask.json("send", "FromStdin", "--lines", "-", "--at-once", "16", "-q", given=many)
    assert said["sent"] == 200
    assert "200 messages sent in" in ask("send", "FromStdin", "--lines", "-", "-q", given=many).out
    got = ask.json("receive", "FromStdin", "--tail", "1000")
    assert sorted(int(str(body)) for body in bodies(got)) == sorted([*range(200)] * 2)


def test_rate_limit_is_obeyed(ask: Ask) -> None:
    ask("send", "Rated", *"abcde", "--rate", "50")
    stored = [int(str(row["bornMs"])) for row in ask.json("receive", "Rated", "--tail", "5")]
    # 80 ms by the clock that paces; on a machine that others use too the first may be made late, the last never early.
    assert max(stored) - min(stored) >= 40


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("send", "T"), 2, "give either message texts or --lines"),
        (("send", "T", "x", "--lines", "-"), 2, "give either message texts or --lines"),
        (("send", "T", "--lines", "/no/such/file"), 2, "cannot read"),
        (("send", "T", "x", "-p", "novalue"), 2, "use NAME=VALUE"),
        (("send", "T", "x", "-p", "KEYS=a"), 2, "property KEYS is reserved"),
        (("send", "T", "x", "--key", "a b"), 2, "contain spaces"),
        (("send", "T", "x", "--delay", "soon"), 2, "'soon' is not a delay"),
        (("send", "Bad!", "x"), 2, "illegal"),
        (("receive", "Bad!"), 2, "illegal"),
        (("receive", "T", "--group", "bad group"), 2, "illegal"),
        (("topic", "show", "Bad!"), 2, "illegal"),
        (("topic", "delete", "Bad!", "--yes"), 2, "illegal"),
        (("topic", "show", "Missing"), 1, "no broker has topic Missing"),
        (("group", "show", "bad group"), 2, "illegal"),
        (("group", "show", "missing"), 1, "no broker has group missing"),
        (("message", "find", "Bad!", "--key", "k"), 2, "illegal"),
        (("message", "life", "nonsense"), 2, "a unique id requires --topic"),
        (("config", "keys", "nonsense"), 2, "is not a key"),
        (("context", "use", "missing"), 2, "no context missing"),
        (("deadletter", "resend", "g", "nonsense"), 2, "offsetMessageId"),
        (("receive", "T", "--tail", "1", "--group", "g"), 2, "omit --group"),
        (("receive", "T", "--tail", "1", "--count", "1"), 2, "require --follow"),
        (("receive", "T", "--queue", "1"), 2, "require --tail"),
        (("receive", "T", "--sql", "a > 1", "--tags", "A", "--tail", "1"), 2, "mutually exclusive"),
        (("message", "find", "T"), 2, "give a search criterion"),
        (("message", "find", "T", "--key", "a", "--id", "b"), 2, "not both"),
        (("message", "find", "T", "--key", "a", "--queue", "1"), 2, "requires --from"),
        (("message", "find", "T", "--from", "now", "--to", "1h ago"), 2, "swap them"),
        (("message", "find", "T", "--from", "whenever"), 2, "is not a time"),
        (("message", "get", "nonsense"), 2, "a unique id requires --topic"),
        (("message", "get", "0A0102030000" + "0" * 20), 1, "but no registered broker has that address"),
        (("message", "life", "0" * 32), 1, "a unique id requires --topic"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_invalid_options_are_reported(ask: Ask, words: tuple[str, ...], code: int, told: str) -> None:
    done = ask(*words)
    assert (done.code, done.out) == (code, "")
    assert told in done.err


def test_http_port_in_place_of_the_nameservers_is_reported_without_a_tls_hint(ask: Ask) -> None:
    http = ask.environment["DELAYMQ_HTTP"].removeprefix("http://")
    done = ask("topic", "list", "--namesrv", http)
    assert (done.code, done.out) == (3, "")
    assert "the peer responds in HTTP" in done.err
    assert "--namesrv takes the NameServer's address" in done.err
    assert "tls" not in done.err.lower()


def test_overlong_line_ends_the_sending_with_the_progress(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"short\n" + b"x" * (4 * 1024 * 1024 + 1) + b"\n")
    done = ask("send", "TooLong", "--lines", str(tmp_path / "lines"))
    assert done.code == 2
    assert "line 2 exceeds 4194304 bytes" in done.err


def test_failed_send_reports_the_number_of_sent_messages(ask: Ask) -> None:
    done = ask("send", "Partly", "a", "b", "--property", "KEYS=a")
    assert (done.code, "property KEYS is reserved" in done.err, "sent before" in done.err) == (2, True, False)


def test_browsing_neither_needs_nor_moves_a_group(ask: Ask) -> None:
    ask("topic", "create", "Seen", "--queues", "2")
    ask("send", "Seen", *"abcdef")
    assert bodies(ask.json("receive", "Seen", "--tail", "3")) == ["d", "e", "f"]
    assert len(ask.json("receive", "Seen", "--tail", "2", "--each-queue")) == 4
    assert len(ask.json("receive", "Seen", "--tail", "9", "--queue", "1")) == 3
    assert "no readable queue 7" in ask("receive", "Seen", "--tail", "1", "--queue", "7").err
    shown = ask("receive", "Seen", "--tail", "1")
    assert (shown.code, len(shown.lines)) == (0, 1)
    assert ask.json("topic", "show", "Seen")[0]["groups"] == []
    assert all("Seen" not in str(row["topics"]) for row in ask.json("group", "list", "--all"))
    ask("topic", "create", "Unseen")
    nothing = ask("receive", "Unseen", "--tail", "5")
    assert (nothing.code, "has no matching messages" in nothing.err) == (0, True)


def test_new_messages_are_followed_without_a_group(ask: Ask, standalone: Standalone) -> None:
    ask("topic", "create", "Followed", "--queues", "3")
    ask("send", "Followed", "old", "older")
    words = [
        sys.executable,
        "-m",
        "delaymq",
        "receive",
        "Followed",
        "--tail",
        "1",
        "--follow",
        "--count",
        "4",
        "--json",
    ]
    environment = {**os.environ, **standalone.environment}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
        ask("send", "Followed", "new", "newer")
        ask("send", "Followed", "late", "--delay", "1s")
        try:
            assert process.wait(timeout=LIMIT_S) == 0, process.stderr.read()
        finally:
            process.kill()
        rest = [json.loads(line) for line in process.stdout]
    assert first["body"] == "older"
    assert sorted(row["body"] for row in rest) == ["late", "new", "newer"]
    late = next(row for row in rest if row["body"] == "late")
    assert late["latenessMs"] == late["storedMs"] - late["dueMs"] >= 0
    ended = ask("receive", "Followed", "--tail", "0", "--follow", "--timeout", "0.3", "--count", "1")
    assert (ended.code, "received 0 of 1 message" in ended.err) == (1, True)


@pytest.mark.parametrize("how", [("--tail", "1", "--follow"), ("--follow",)], ids=" ".join)
def test_ctrl_c_exits_with_130_and_reports_the_count(ask: Ask, standalone: Standalone, how: tuple[str, ...]) -> None:
    topic = f"Interrupted{len(how)}"
    ask("send", topic, "x")
    words = [sys.executable, "-m", "delaymq", "receive", topic, *how]
    environment = {**os.environ, **standalone.environment}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=LIMIT_S) == 130
        finally:
            process.kill()
        assert process.stderr.read() == "delaymq: 1 message received\n"


def test_messages_are_found_by_key_id_and_time_even_while_pending(ask: Ask) -> None:
    ask("topic", "create", "Found", "--queues", "2")
    [first] = ask.json("send", "Found", "a", "--key", "k1")
    ask("send", "Found", "b", "--key", "k1")
    [waits] = ask.json("send", "Found", "later", "--key", "k1", "--delay-level", "4")
    by_key = ask.json("message", "find", "Found", "--key", "k1")
    assert bodies(by_key) == ["a", "b", "later"]
    assert [row["state"] for row in by_key] == ["stored", "stored", "waiting"]
    assert {row["topic"] for row in by_key} == {"Found"}
    assert [row["messageId"] for row in ask.json("message", "find", "Found", "--id", str(waits["messageId"]))] == [
        waits["messageId"]
    ]
    assert "pending until" in ask("message", "find", "Found", "--key", "k1").out
    between = ("message", "find", "Found", "--from", str(by_key[0]["storedMs"]))
    assert bodies(ask.json(*between)) == ["a", "b"]
    assert bodies(ask.json(*between, "--limit", "1")) == ["a"]
    assert len(ask.json(*between, "--queue", str(first["queueId"]))) == 1
    none = ask("message", "find", "Found", "--from", "0", "--to", "1")
    assert (none.code, none.out, "no message found in topic Found" in none.err) == (1, "", True)
    assert "no message found in topic Found with key k9" in ask("message", "find", "Found", "--key", "k9").err
    assert "no message found in topic Found with unique id 0A" in ask("message", "find", "Found", "--id", "0A").err
    assert ask("message", "find", "Found", "--key", "other").code == 1
    [got] = ask.json("message", "get", str(first["offsetMessageId"]))
    assert (got["body"], got["messageId"]) == ("a", first["messageId"])
    [by_id] = ask.json("message", "get", str(waits["messageId"]), "--topic", "Found")
    assert (by_id["body"], by_id["state"]) == ("later", "waiting")
    text = ask("message", "get", str(waits["offsetMessageId"])).out
    assert "topic:             Found (pending delivery)" in text
    assert "due:" in text
    assert ask("message", "get", "A" * 32, "--topic", "Found").code == 1


def test_pending_timed_message_is_found_by_key_and_id(ask: Ask) -> None:
    at = (datetime.now(UTC) + timedelta(days=90)).isoformat(timespec="milliseconds")
    [sent] = ask.json("send", "FoundTimed", "later", "--key", "k1", "--at", at)
    search = ("message", "find", "FoundTimed", "--key", "k1")
    [found] = ask.json(*search)
    assert (found["messageId"], found["dueMs"], found["state"]) == (sent["messageId"], sent["dueMs"], "waiting")
    assert found["dueMs"] == parse_time(at)
    assert f"pending until {format_time(int(str(sent['dueMs'])))}" in ask(*search).out
    text = ask("message", "get", str(sent["messageId"]), "--topic", "FoundTimed").out
    assert "topic:             FoundTimed (pending delivery)" in text
    assert f"due:               {format_time(int(str(sent['dueMs'])))}\n" in text


def test_search_by_time_reports_pending_messages(ask: Ask) -> None:
    ask("topic", "create", "FindLater")
    ask("send", "FindLater", "a", "b", "--delay-level", "4")
    search = ("message", "find", "FindLater", "--from", "10m ago")
    told = "2 pending delayed messages at http://127.0.0.1:"
    done = ask(*search)
    assert (done.code, done.out) == (1, "")
    assert f"no message found in topic FindLater: {told}" in done.err
    assert "`delaymq delay list --topic FindLater`" in done.err
    ask("send", "FindLater", "now")
    done = ask(*search)
    assert (done.code, done.lines[-1].startswith(told)) == (0, True)
    assert bodies(ask.json(*search)) == ["now"]
    listed = ask.json("delay", "list", "--topic", "FindLater")
    assert [row["topic"] for row in listed] == ["FindLater"] * 2
    # By key they are found themselves; and a broker that is not the one of --http is found by its settings.
    assert "waits at" not in ask("message", "find", "FindLater", "--key", "none").err
    done = ask(*search, "--http", "http://127.0.0.1:1")
    assert (done.code, done.err, done.lines[-1].startswith(told)) == (0, "", True)


def test_pending_message_is_counted_listed_and_has_a_history(ask: Ask) -> None:
    [sent] = ask.json("send", "Waiting", "x", "--delay-level", "4", "--key", "w")
    [by_topic] = ask.json("delay", "pending", "--by", "topic", "--topic", "Waiting")
    assert [row["topic"] for row in by_topic["rows"]] == ["Waiting"]  # type: ignore[attr-defined]
    assert " and later" in ask("delay", "pending", "--by", "due", "--bucket", "1s").out
    assert " to " in ask("delay", "pending", "--by", "due", "--bucket", "1h").out
    assert ask("delay", "pending").code == 0
    listed = ask.json("delay", "list")
    assert sent["messageId"] in [row["messageId"] for row in listed]
    [life] = ask.json("message", "life", str(sent["messageId"]), "--topic", "Waiting")
    assert (life["state"], life["topic"]) == ("pending", "Waiting")
    assert "stored" in ask("message", "life", str(sent["offsetMessageId"])).out
    watched = ask.json("delay", "watch", "--times", "1")
    assert watched[0]["levels"]


def test_pending_timed_message_is_counted_listed_and_has_a_history(ask: Ask) -> None:
    [sent] = ask.json("send", "TimedLater", "x", "--delay", "1500s", "--key", "w")
    [counts] = ask.json("delay", "pending", "--topic", "TimedLater")
    assert [(row["timed"], row["pending"]) for row in counts["rows"]] == [(True, 1)]  # type: ignore[attr-defined]
    [listed] = ask.json("delay", "list", "--topic", "TimedLater", "--kind", "timed")
    assert (listed["messageId"], listed["dueMs"]) == (sent["messageId"], sent["dueMs"])
    assert any(line.split()[0] == "timed" for line in ask("delay", "status").lines)
    [life] = ask.json("message", "life", str(sent["messageId"]), "--topic", "TimedLater")
    assert (life["state"], life["topic"]) == ("pending", "TimedLater")


def test_dead_letters_are_listed_and_resent_to_their_group(ask: Ask, standalone: Standalone) -> None:
    program = """
import asyncio, sys
from delaymq.client import *
async def fail(message):
    done.set()
    raise RuntimeError("no")
async def main():
    global done
    done = asyncio.Event()
    options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, max_reconsume_times=0)
    async with Client(sys.argv[1]) as client:
        consumer = PushConsumer(client, "failing", fail, options)
        consumer.subscribe("Fails")
        async with consumer:
            await done.wait()
            admin = Admin(client)
            while not await admin.topic_exists("%DLQ%failing"):
                await asyncio.sleep(0.05)
            while not await admin.last_messages("%DLQ%failing", 1):
                await asyncio.sleep(0.05)
asyncio.run(asyncio.wait_for(main(), 60))
"""
    for words in (("list", "failing"), ("resend", "failing", "--all")):
        unknown = ask("deadletter", *words)
        assert (unknown.code, unknown.out, "no broker has group failing" in unknown.err) == (1, "", True)
    ask("group", "create", "failing")
    for words in (("list", "failing"), ("resend", "failing", "--all")):
        none = ask("deadletter", *words)
        assert (none.code, "has no dead letters" in none.out) == (0, True)
    assert ask.json("deadletter", "resend", "failing", "--all") == [
        {"group": "failing", "resent": [], "failed": [], "resentBefore": []}
    ]
    ask("send", "Fails", "poison", "--key", "p")
    command = [sys.executable, "-c", program, standalone.environment["DELAYMQ_NAMESRV"]]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [row["deadLetters"] for row in ask.json("deadletter", "list")] == [1]
    assert "failing" in ask("deadletter", "list").out
    [letter] = ask.json("deadletter", "list", "failing")
    assert (letter["body"], letter["originTopic"], letter["state"]) == ("poison", "Fails", "deadLettered")
    shown = ask("deadletter", "list", "failing").out
    assert ("poison" in shown, "resent" in shown) == (True, True)
    assert ask.json("group", "list", "--contains", "failing")[0]["deadLetters"] == 1
    assert ask("deadletter", "resend", "failing", "--all").code == 2
    done = ask("deadletter", "resend", "failing", "--all", "--yes")
    assert (done.code, "1 of 1 dead letter was resent to group failing" in done.out) == (0, True)
    again = ask("deadletter", "resend", "failing", str(letter["offsetMessageId"]))
    assert (again.code, "not resent" in again.out) == (1, True)
    assert "add --again to resend it anyway" in again.out
    assert "again=true" not in again.out
    [resent] = ask.json("deadletter", "list", "failing")
    assert (letter["resentMs"], int(str(resent["resentMs"])) >= int(str(letter["storedMs"]))) == (None, True)
    rest = ask("deadletter", "resend", "failing", "--all", "--yes")
    assert (rest.code, rest.lines[-1]) == (0, "1 was resent before: add --again to resend it")
    [rest_data] = ask.json("deadletter", "resend", "failing", "--all", "--yes")
    assert [len(rest_data[name]) for name in ("resent", "failed", "resentBefore")] == [0, 0, 1]  # type: ignore[arg-type]
    got = ask("receive", "Fails", "--group", "failing", "--count", "1", "--json")
    assert json.loads(got.out)["body"] == "poison"


def test_receiving_by_condition_skips_other_messages(ask: Ask, tmp_path: Path) -> None:
    ask("send", "Priced", "costs nothing")
    refused = ask("receive", "Priced", "--sql", "price > 5", "--count", "1")
    assert (refused.code, "enablePropertyFilter" in refused.err) == (1, True)
    filtering = Standalone(tmp_path)
    with filtering.config_path.open("a") as config:
        config.write("\nenablePropertyFilter=true\n")
    with filtering.running():
        there = Ask(filtering.environment)
        for price in ("3", "7"):
            assert there("send", "Priced", f"costs {price}", "--property", f"price={price}").code == 0
        got = there("receive", "Priced", "--sql", "price > 5", "--count", "1", "--json")
        assert json.loads(got.out)["body"] == "costs 7"
        wrong = there("receive", "Priced", "--sql", "price >", "--count", "1")
        assert (wrong.code, "line 1, column 8" in wrong.err) == (1, True)


def test_browsing_by_condition_neither_needs_nor_leaves_a_group(ask: Ask, tmp_path: Path) -> None:
    ask("send", "Watched", "costs nothing")
    for words in (("--tail", "1"), ("--tail", "0", "--follow")):
        refused = ask("receive", "Watched", "--sql", "price > 5", *words)
        assert (refused.code, refused.out, "enablePropertyFilter" in refused.err) == (1, "", True)
    filtering = Standalone(tmp_path)
    with filtering.config_path.open("a") as config:
        config.write("\nenablePropertyFilter=true\n")
    with filtering.running():
        there = Ask(filtering.environment)
        for price in range(1, 10):
            assert there("send", "Watched", f"costs {price}", "--property", f"price={price}").code == 0
        wanted = ("receive", "Watched", "--sql", "price > 4 AND price < 8", "--tail")
        assert bodies(there.json(*wanted, "20")) == ["costs 5", "costs 6", "costs 7"]
        # As with tags: of the newest four those that are wanted.
        assert bodies(there.json(*wanted, "4")) == ["costs 6", "costs 7"]
        wrong = there("receive", "Watched", "--sql", "price >", "--tail", "4")
        assert (wrong.code, "line 1, column 8" in wrong.err) == (1, True)
        following = subprocess.Popen(
            [sys.executable, "-m", "delaymq", *wanted, "20", "--follow", "--count", "4", "--json"],
            env={**os.environ, **filtering.environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert following.stdout is not None
            seen = [json.loads(following.stdout.readline())["body"] for _ in range(3)]
            for price in (8, 5):
                there("send", "Watched", f"costs {price} now", "--property", f"price={price}")
            rest, _ = following.communicate(timeout=LIMIT_S)
        finally:
            following.kill()
            following.wait()
        assert [*seen, json.loads(rest)["body"]] == ["costs 5", "costs 6", "costs 7", "costs 5 now"]
        assert there.json("group", "list", "--names") == []


def test_browsing_backward_ends_when_enough_is_shown(ask: Ask) -> None:
    ask("send", "Enough", "a", "b", "c")
    done = ask("receive", "Enough", "--tail", "3", "--follow", "--count", "2")
    assert done.code == 0
    assert len(done.lines) == 2


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_browsing_backward_ends_when_the_pipe_closes(ask: Ask, form: list[str]) -> None:
    ask("send", "NobodyReads", "a", "b", "c")
    words = [sys.executable, "-m", "delaymq", "receive", "NobodyReads", "--tail", "3", *form]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        environment = {**os.environ, **ask.environment}
        done = subprocess.run(words, stdout=pipe, stderr=subprocess.PIPE, env=environment, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


def test_line_is_sent_before_the_next_one_arrives(ask: Ask) -> None:
    words = [sys.executable, "-m", "delaymq", "send", "Typed", "--lines", "-", "--json"]
    environment = {**os.environ, **ask.environment}
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for line in ("first", "second"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["status"] == "OK"
        # The third never comes: one Ctrl-C is enough.
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LIMIT_S) == 130
        assert process.stderr.read() == ""
    assert bodies(ask.json("receive", "Typed", "--tail", "5")) == ["first", "second"]
