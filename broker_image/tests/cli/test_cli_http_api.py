"""Commands over HTTP, against a scripted server: requests, limits, every error."""

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from delaymq.cli.errors import CommandError
from delaymq.cli.target import http_api
from delaymq.cli.target.contexts import Target
from delaymq.cli.target.http_api import HttpApi
from delaymq_testing.cli_running import Done, called

LEVEL = {
    "level": 2, "delayMs": 5_000, "inTable": True, "offset": 3, "maxOffset": 5, "pending": 2, "settledAbove": 0,
    "nextDueMs": 1_700_000_003_000, "lateness": {"p50Ms": 1.0, "p99Ms": 2.0, "maxMs": 3.0},
}  # fmt: skip
TIMED = {
    "pending": 4, "pendingBytes": 900, "nextDueMs": 1_700_000_001_000, "delivered": 6,
    "lateness": {"p50Ms": 1, "p99Ms": 2, "maxMs": 75}, "index": {"runs": 1, "fileBytes": 0, "mergingEntries": 0},
}  # fmt: skip
DELAY = {"asOfMs": 1_700_000_000_000, "levels": [LEVEL], "corrected": []}
MESSAGE = {
    "messageId": "AB", "offsetMessageId": "7F", "topic": "Orders", "keys": ["k"], "delayLevel": 2, "bytes": 5,
    "dueMs": 1_700_000_003_000, "state": "pending", "properties": {},
}  # fmt: skip


class FakeApi:
    """Keeps requests; answers (status, body) by path. Of a list each answer is given once, the last one from then on;
    None: the connection ends without an answer, as that of a broker that stops."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = ""
        self.headers: dict[str, str] = {}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fake.requests.append((self.command, self.path, dict(self.headers), body))
            found = fake.answers.get(self.path.partition("?")[0], (404, b"nothing"))
            if isinstance(found, list):
                found = found.pop(0) if len(found) > 1 else found[0]
            if found is None:
                self.close_connection = True
                return
            status, answer = found
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in fake.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            """Requests are no output of a test."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


def ask(api: FakeApi, *words: str, **environment: str) -> Any:
    return called(*words, environment={"DELAYMQ_HTTP": api.url, **environment})


def test_token_from_the_environment_is_sent_and_never_shown(api: FakeApi) -> None:
    api.answers["/api/v1/delay"] = (200, DELAY)
    done = ask(api, "delay", "status", DELAYMQ_HTTP_TOKEN="s3cret")
    assert done.code == 0
    assert api.requests[0][2]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in done.out + done.err


def test_redirect_is_not_followed_with_the_token(api: FakeApi) -> None:
    api.answers["/api/v1/delay"] = (302, b"")
    api.headers["Location"] = f"{api.url}/elsewhere"
    done = ask(api, "delay", "status", DELAYMQ_HTTP_TOKEN="s3cret")
    assert done.code == 1
    assert [path for _, path, _, _ in api.requests] == ["/api/v1/delay"]


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (401, {"error": {"code": "unauthorized", "message": "no"}}, "--token-file"),
        (403, b"", "DELAYMQ_HTTP_TOKEN"),
        (404, b"<html>", "is --http correct?"),
        (404, {"error": {"code": "not_found", "message": "GET /api/v1/delay: Not Found"}}, "older than this command"),
        (503, {"error": {"code": "busy", "message": "come later"}}, "rejected the request: come later (busy)"),
        (500, {"error": "odd"}, "is --http correct?"),
        (200, b"[1]", "returned an unexpected response"),
        (200, b"{", "did not return JSON"),
        (200, b"[" * 100_000, "did not return JSON"),
        (200, {"levels": 5, "asOfMs": 1}, "is it a DelayMQ broker of this version?"),
        (200, {}, "is it a DelayMQ broker of this version?"),
    ],
    ids=str,
)
def test_each_error_is_one_sentence(api: FakeApi, status: int, answer: Any, told: str) -> None:
    api.answers["/api/v1/delay"] = (status, answer)
    done = ask(api, "delay", "status")
    assert (done.code, done.out) == (1, "")
    assert told in done.err
    assert done.err.count("\n") == 1


def test_oversized_response_is_rejected(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "MAX_RESPONSE_BYTES", 10)
    api.answers["/api/v1/delay"] = (200, DELAY)
    assert "exceeds 10 bytes" in ask(api, "delay", "status").err


def test_unresponsive_server_times_out(api: FakeApi) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = Target("", f"http://127.0.0.1:{silent.getsockname()[1]}", "", "")
        with pytest.raises(CommandError, match="did not respond within") as caught:
            HttpApi(there, timeout_s=0.1).get("delay")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://[::1", "no-port:x"])
def test_invalid_address_is_a_usage_error(url: str) -> None:
    done = called("delay", "status", "--http", url)
    assert done.code == 2
    assert "is not an HTTP address" in done.err


def test_methods_bodies_and_parameters_are_sent_as_documented(api: FakeApi) -> None:
    api.answers["/api/v1/thing"] = (200, {"a": 1})
    client = HttpApi(Target("", api.url, "", ""))
    for answer in (
        client.get("thing", x="a b", none=None),
        client.post("thing", {"b": 2}),
        client.put("thing", [1]),
        client.delete("thing"),
    ):
        assert answer == {"a": 1}
    assert [(method, path, body) for method, path, _, body in api.requests] == [
        ("GET", "/api/v1/thing?x=a+b", b""),
        ("POST", "/api/v1/thing", b'{"b": 2}'),
        ("PUT", "/api/v1/thing", b"[1]"),
        ("DELETE", "/api/v1/thing", b""),
    ]
    assert [headers.get("Content-Type") for _, _, headers, _ in api.requests][1:3] == ["application/json"] * 2


def test_pending_messages_are_counted_by_level_topic_and_due_time(api: FakeApi) -> None:
    common = {"asOfMs": 1_700_000_000_000, "total": 7, "complete": False}
    rows = {
        "level": {"level": 2, "pending": 7, "nextDueMs": 1_700_000_003_000},
        "topic": {"topic": "Orders", "pending": 7, "nextDueMs": None},
        "due": {"fromMs": 1_700_000_000_000, "toMs": 1_700_000_060_000, "pending": 7},
    }
    for by, row in rows.items():
        api.answers["/api/v1/delay/pending"] = (200, {**common, "by": by, "rows": [row]})
        done = ask(api, "delay", "pending", "--by", by)
        assert done.code == 0
        assert "7 pending" in done.out
        assert "the count is incomplete" in done.out
        assert json.loads(ask(api, "delay", "pending", "--by", by, "--json").out)["rows"] == [row]
    some = {**common, "by": "topic", "rows": [rows["topic"]], "truncated": True}
    api.answers["/api/v1/delay/pending"] = (200, some)
    assert (
        "only the topics with the most pending messages are listed" in ask(api, "delay", "pending", "--by", "topic").out
    )
    ask(api, "delay", "pending", "--by", "due", "--bucket", "1m", "--level", "2", "--topic", "Orders")
    assert api.requests[-1][1] == "/api/v1/delay/pending?by=due&level=2&topic=Orders&bucketMs=60000"


def test_timed_messages_are_shown_next_to_the_levels(api: FakeApi) -> None:
    api.answers["/api/v1/delay"] = (200, {**DELAY, "timed": TIMED})
    done = ask(api, "delay", "status")
    [row] = [line for line in done.lines if "timed" in line]
    assert row.split()[1] == "4"
    assert "75 ms" in row
    assert done.lines[-1] == "6 pending, next due in 1.0 s"
    done = ask(api, "delay", "watch", "--times", "1")
    assert "6 pending, next due in 1.0 s" in done.out
    unused = {**TIMED, "pending": 0, "delivered": 0, "nextDueMs": None}
    api.answers["/api/v1/delay"] = (200, {**DELAY, "timed": unused})
    done = ask(api, "delay", "status")
    assert ("timed" in done.out, done.lines[-1]) == (False, "2 pending, next due in 3.0 s")
    assert "timed" in ask(api, "delay", "status", "--all").out


def test_pending_timed_messages_are_counted(api: FakeApi) -> None:
    rows = [
        {"level": 2, "pending": 7, "nextDueMs": 1_700_000_003_000},
        {"timed": True, "pending": 9, "nextDueMs": 1_700_000_001_000},
    ]
    answer = {"asOfMs": 1_700_000_000_000, "by": "level", "total": 16, "complete": True, "rows": rows}
    api.answers["/api/v1/delay/pending"] = (200, answer)
    done = ask(api, "delay", "pending")
    assert [line.split()[:2] for line in done.lines if line.split()[0] in ("2", "timed")] == [
        ["2", "7"],
        ["timed", "9"],
    ]
    assert api.requests[-1][1] == "/api/v1/delay/pending?by=level"
    ask(api, "delay", "pending", "--kind", "timed")
    assert api.requests[-1][1] == "/api/v1/delay/pending?by=level&kind=timed"


def ask_one(api: FakeApi, *words: str) -> Done:
    return ask(api, *words, "--http", api.url)


def test_pending_messages_are_listed(api: FakeApi) -> None:
    path, rest = "/api/v1/delay/pending/messages", {"asOfMs": 1, "total": 1, "next": None, "complete": True}
    api.answers[path] = (200, {**rest, "messages": [MESSAGE]})
    done = ask_one(api, "delay", "list", "--limit", "5")
    assert (done.code, "Orders" in done.out, "listed" in done.out) == (0, True, False)
    listed = json.loads(ask_one(api, "delay", "list", "--limit", "5", "--json").out)
    assert listed == {**MESSAGE, "broker": api.url}
    assert api.requests[-1][1].endswith("?limit=5")
    ask_one(api, "delay", "list", "--topic", "Orders", "--level", "2", "--tag", "T", "--from", "5", "--until", "9")
    assert api.requests[-1][1].endswith("?topic=Orders&tag=T&fromMs=5&untilMs=9&level=2&limit=100")
    api.answers[path] = (200, {**rest, "messages": [{**MESSAGE, "delayLevel": 0}]})
    done = ask_one(api, "delay", "list", "--kind", "timed")
    assert (done.code, " timed " in done.out) == (0, True)
    api.answers[path] = (200, {**rest, "messages": [], "total": 0, "complete": False})
    done = ask_one(api, "delay", "list")
    assert "no pending messages" in done.out
    assert "the count is incomplete" in done.out


def test_pages_of_pending_messages_are_read_up_to_the_limit(api: FakeApi) -> None:
    path, rest = "/api/v1/delay/pending/messages", {"asOfMs": 1, "total": 250, "complete": True}
    page = (200, {**rest, "messages": [MESSAGE] * 100, "next": "1.2"})
    last = (200, {**rest, "messages": [MESSAGE] * 50, "next": None})
    api.answers[path] = [page, page, last]
    told = "120 of 250 pending messages are listed: list more with --limit, or later ones with --from"
    done = ask_one(api, "delay", "list", "--limit", "120", "--json")
    # A broker may return more than requested.
    assert (len(done.lines), done.err) == (120, f"delaymq: {told}\n")
    assert [request[1].partition("?")[2] for request in api.requests] == ["limit=100", "after=1.2&limit=20"]
    api.answers[path] = [page, page, last]
    assert len(ask_one(api, "delay", "list", "--limit", "1000", "--json").lines) == 250


def test_pending_messages_are_counted_by_pages_if_the_broker_knows_no_total(api: FakeApi) -> None:
    path, rest = "/api/v1/delay/pending/messages", {"asOfMs": 1, "total": None, "complete": True}
    api.answers[path] = [
        (200, {**rest, "messages": [MESSAGE] * 3, "next": "1.2"}),
        (200, {**rest, "messages": [], "next": "1.3"}),
        (200, {**rest, "messages": [MESSAGE], "next": None}),
    ]
    assert ask_one(api, "delay", "count", "--tag", "T").out == "4 pending\n"
    api.answers[path] = (200, {**rest, "total": 7, "messages": [MESSAGE], "next": "1.2", "complete": False})
    counted = json.loads(ask_one(api, "delay", "count", "--json").out)
    assert counted == {
        "total": 7, "complete": False, "brokers": [{"broker": api.url, "total": 7}], "missing": [],
    }  # fmt: skip
    assert "the count is incomplete" in ask_one(api, "delay", "count").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("list", "--key", "k"), "--key needs --topic"),
        (("count", "--level", "1", "--kind", "timed"), "timed messages have no level"),
        (("list", "--from", "10", "--until", "10"), "--from is not before --until"),
        (("list", "--from", "soon"), "is not a time"),
        (("show", "Orders"), "name the message by either --key or --id"),
        (("show", "Orders", "--key", "k", "--id", "i"), "name the message by either --key or --id"),
        (("cancel", "Orders"), "name the message by one of --key, --id and --handle"),
        (("cancel", "Orders", "--key", "k", "--id", "i"), "name the message by one of"),
        (("move", "Orders", "--key", "k"), "give either --at or --after"),
        (("move", "Orders", "--key", "k", "--after", "soon"), "--after: "),
    ],
)
def test_wrong_options_of_lists_and_changes_are_reported(words: tuple[str, ...], told: str, api: FakeApi) -> None:
    done = ask_one(api, "delay", *words)
    assert (done.code, api.requests) == (2, [])
    assert told in done.err


@pytest.mark.parametrize("words", [("list",), ("count",)])
def test_list_from_a_broker_that_returns_something_else_is_reported(words: tuple[str, ...], api: FakeApi) -> None:
    api.answers["/api/v1/delay/pending/messages"] = (200, {"messages": []})
    done = ask_one(api, "delay", *words)
    assert done.code == 1
    assert "did not return pending messages" in done.err


def test_changes_are_requested_and_refusals_reported(api: FakeApi) -> None:
    api.answers["/api/v1/delay/changes"] = (200, {"changed": 1, "dueMs": 1_700_000_003_000})
    done = ask_one(api, "delay", "move", "Orders", "--key", "k", "--after", "2h")
    assert done.out.startswith("1 message moved, due at 2023-11-1")
    assert json.loads(api.requests[-1][3]) == {"action": "move", "topic": "Orders", "key": "k", "delayMs": 7_200_000}
    ask_one(api, "delay", "move", "Orders", "--id", "i", "--at", "2027-03-02T09:00+01:00")
    assert json.loads(api.requests[-1][3])["deliverAt"] == "2027-03-02T09:00:00+01:00"
    for action, told in (("fire", "made due now"), ("touch", "touched")):
        assert f"1 message {told}" in ask_one(api, "delay", action, "Orders", "--handle", "h").out
    api.answers["/api/v1/delay/changes"] = (200, {"changed": 0, "dueMs": None})
    assert ask_one(api, "delay", "cancel", "Orders", "--key", "k").out == "the message had been cancelled before\n"
    refusal = {"error": {"code": "delivered", "message": "the message was delivered at 12:00"}}
    api.answers["/api/v1/delay/changes"] = (409, refusal)
    done = ask_one(api, "delay", "cancel", "Orders", "--key", "k", "--json")
    assert (done.code, done.out, "the message was delivered at 12:00" in done.err) == (1, "", True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--by", "due", "--bucket", "soon"), "is not a delay"),
        (("--by", "topic", "--bucket", "1m"), "requires --by due"),
        (("--level", "1", "--kind", "timed"), "timed messages have no level"),
    ],
)
def test_conflicting_options_are_reported(words: tuple[str, ...], told: str, api: FakeApi) -> None:
    done = ask(api, "delay", "pending", *words)
    assert done.code == 2
    assert told in done.err
    assert api.requests == []


def test_paused_deliveries_are_reported(api: FakeApi) -> None:
    api.answers["/api/v1/delay"] = (200, {**DELAY, "held": {"mode": "paused", "overdue": 4}})
    told = "deliveries are paused (4 overdue): resume deliveries with `delaymq delay resume`"
    assert told in ask(api, "delay", "status").out
    api.answers["/api/v1/delay"] = (200, {**DELAY, "held": {"mode": "spread", "left": 4}})
    assert "; spreading 4 overdue messages over time" in ask(api, "delay", "status").out


def test_unreadable_offsets_are_discarded_only_on_request(api: FakeApi) -> None:
    path = "/api/v1/offsets/forget"
    api.answers[path] = (200, {"asOfMs": 1, "kept": ["config/consumerOffset.json.unreadable"]})
    assert ask(api, "group", "forget-offsets").code != 0
    assert api.requests == []
    done = ask(api, "group", "forget-offsets", "--yes")
    assert (done.code, api.requests[0][:2]) == (0, ("POST", path))
    assert "the unreadable files are kept as config/consumerOffset.json.unreadable" in done.out
    api.answers[path] = (409, {"error": {"code": "readable", "message": "the consumer offsets can be read"}})
    refused = ask(api, "group", "forget-offsets", "--yes")
    assert (refused.code, "the consumer offsets can be read" in refused.err) == (1, True)


def test_watch_prints_a_line_per_interval_without_a_terminal(api: FakeApi) -> None:
    api.answers["/api/v1/delay"] = (200, DELAY)
    done = ask(api, "delay", "watch", "--every", "0.2", "--times", "2")
    assert (done.code, len(done.lines)) == (0, 2)
    assert all("2 pending, next due in 3.0 s" in line for line in done.lines)
    as_json = ask(api, "delay", "watch", "--every", "0.2", "--times", "2", "--json")
    assert [json.loads(line) for line in as_json.lines] == [DELAY, DELAY]


def test_watch_waits_for_an_unavailable_broker_without_a_terminal(api: FakeApi) -> None:
    for words in ((), ("--json",)):
        api.answers["/api/v1/delay"] = [(200, DELAY), None, None, (200, DELAY)]
        done = ask(api, "delay", "watch", "--every", "0.2", "--times", "4", *words)
        assert (done.code, len(done.lines)) == (0, 2)
        assert done.err.startswith(f"delaymq: waiting for the broker: {api.url}")
        assert done.err.count("\n") == 1
    api.answers["/api/v1/delay"] = [(200, DELAY), (401, b"")]
    refused = ask(api, "delay", "watch", "--every", "0.2")
    assert (refused.code, len(refused.lines), "--token-file" in refused.err) == (1, 1, True)


def test_dead_letters_are_resent_in_requests_of_64_and_failures_exit_with_one(api: FakeApi) -> None:
    path = "/api/v1/deadletters/billing/resend"
    api.answers[path] = (200, {"resent": [{"offsetMessageId": "A", "newOffsetMessageId": "B"}], "failed": []})
    done = ask(api, "deadletter", "resend", "billing", *(f"ID{number}" for number in range(65)))
    assert done.code == 0
    assert "2 of 65 dead letters were resent to group billing" in done.out
    bodies = [json.loads(body) for _, _, _, body in api.requests]
    assert [len(body["messages"]) for body in bodies] == [64, 1]
    assert bodies[1] == {"messages": [{"offsetMessageId": "ID64"}]}
    api.answers[path] = (200, {"resent": [], "failed": [{"offsetMessageId": "A", "message": "resent before"}]})
    done = ask(api, "deadletter", "resend", "billing", "A", "--again")
    assert (done.code, "not resent: A: resent before" in done.out) == (1, True)
    assert json.loads(api.requests[-1][3])["again"] is True
    data = json.loads(ask(api, "deadletter", "resend", "billing", "A", "--json").out)
    failed = [{"offsetMessageId": "A", "message": "resent before"}]
    assert data == {"group": "billing", "resent": [], "failed": failed, "resentBefore": []}
    for words in (("billing",), ("billing", "A", "--all")):
        assert ask(api, "deadletter", "resend", *words).code == 2


def test_message_history_is_shown(api: FakeApi) -> None:
    life = [{"event": "consumed", "atMs": None, "detail": "offset 3 of 5", "group": "billing"}]
    body = {"text": "hi", "base64": None, "bytes": 2, "truncated": False}
    api.answers["/api/v1/messages/AB"] = (200, {**MESSAGE, "life": life, "body": body})
    done = ask(api, "message", "life", "AB", "--topic", "Orders")
    assert done.code == 0
    assert api.requests[-1][1] == "/api/v1/messages/AB?topic=Orders"
    assert all(word in done.out for word in ("consumed", "billing", "offset 3 of 5", "body, 2 bytes: hi"))
    assert json.loads(ask(api, "message", "life", "AB", "--topic", "Orders", "--json").out)["life"] == life
    error = {"error": {"code": "no_such_message", "message": "this broker has no message 'X'"}}
    unknown = "7F" * 16
    api.answers[f"/api/v1/messages/{unknown}"] = (404, error)
    done = ask(api, "message", "life", unknown)
    assert (done.code, "a unique id requires --topic" in done.err) == (1, True)
    done = ask(api, "message", "life", "order-1")
    assert (done.code, "'order-1' is not an offset message id" in done.err) == (2, True)


@pytest.mark.parametrize("url", ["http://me:pass-word@127.0.0.1:8080", "me:pass-word@127.0.0.1", "http://pass-word@x/"])
def test_password_in_an_address_is_rejected_and_not_shown(url: str) -> None:
    with pytest.raises(CommandError) as caught:
        http_api.checked_url(url)
    assert caught.value.exit_code == 2
    assert "--token-file" in str(caught.value)
    assert "pass-word" not in str(caught.value)
