"""Hostile bodies, keys, names and responses neither control the terminal nor break a command."""

import io
import json
import threading
import unicodedata
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from delaymq.cli.terminal.sanitize import json_line, on_one_line, visible
from delaymq_testing.cli_running import Done, Standalone, called

HOSTILE = "a\x1b]0;title\x07\x1b[31m\x1b[2J\x9b1m\r\n12:00:00.000  forged\u202e\u2028[/closed] [red] :smile:"
"""Title, colour, screen, a C1 control, a forged line, a right-to-left override, rich's markup and emoji."""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    broker = Standalone(tmp_path_factory.mktemp("broker"))
    with broker.running():
        keys = ("--key", "".join(HOSTILE.split()), "--key", "[/closed]")
        sent = called("send", "Hostile", HOSTILE, *keys, "--tags", HOSTILE, environment=broker.environment)
        assert sent.code == 0, sent.err
        yield broker


def acting(text: str) -> set[str]:
    return {each for each in text if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


LOOKS = [
    ("receive", "Hostile", "--tail", "5"),
    ("receive", "Hostile", "--group", "text", "--count", "1"),
    ("message", "find", "Hostile", "--from", "1h ago"),
    ("message", "find", "Hostile", "--key", "[/closed]"),
]


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("words", LOOKS, ids=lambda words: " ".join(words[:2]) + words[3])
def test_terminal_control_characters_are_escaped(
    standalone: Standalone, words: tuple[str, ...], form: list[str]
) -> None:
    asked = [each if each != "text" else f"g{len(form)}" for each in words]
    done = called(*asked, *form, environment=standalone.environment)
    assert done.code == 0, done.err
    assert acting(done.out + done.err) == set()
    assert "[/closed]" in done.out
    if form:
        (message,) = map(json.loads, done.out.split("\n")[:-1])
        assert message["body"] == HOSTILE
        assert message["tags"] == HOSTILE


def test_received_message_is_one_line_of_any_length(standalone: Standalone) -> None:
    done = called("receive", "Hostile", "--tail", "5", environment=standalone.environment | {"COLUMNS": "40"})
    assert len(done.lines) == 1


def test_message_and_history_are_escaped(standalone: Standalone) -> None:
    found = called("message", "find", "Hostile", "--from", "1h ago", "--json", environment=standalone.environment)
    offset_id = json.loads(found.out)["offsetMessageId"]
    for words in (("message", "get"), ("message", "life")):
        done = called(*words, offset_id, environment=standalone.environment)
        assert done.code == 0, done.err
        assert acting(done.out) == set()
        assert ":smile:" in done.out


def answering(status: str, body: bytes) -> HTTPServer:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(f"HTTP/1.0 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def asked(server: HTTPServer, *words: str) -> Done:
    try:
        return called(*words, "--http", f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", ["400 Bad", "500 \x1b[31mred", "401 \x1b[31m"])
def test_errors_of_a_hostile_server_are_escaped(status: str) -> None:
    body = json.dumps({"error": {"code": "\x1b[2J", "message": HOSTILE}}).encode()
    done = asked(answering(status, body), "delay", "status")
    assert done.code == (2 if status.startswith("400") else 1)
    assert acting(done.err) == set()


def test_ordinary_text_is_unchanged() -> None:
    family = "\U0001f468\u200d\U0001f469"
    text = f"héllo ☃ 日本\u3000語 {family}\ta\nb"
    assert visible(text) == text
    assert on_one_line(text) == text.replace("\t", "\\t").replace("\n", "\\n")
    assert json.loads(json_line({"a": text})) == {"a": text}


def test_json_is_one_lossless_line() -> None:
    text = "".join(map(chr, [*range(0x300), 0x2028, 0x2029, 0xD800, 0xFEFF, 0xE0001]))
    line = json_line(text)
    assert json.loads(line) == text
    assert acting(line) == set()
    assert list(io.StringIO(line)) == [line]
    assert len(line.splitlines()) == 1


def test_settings_file_is_escaped(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=\x1b[31mred\nmaxMessageSize=\x1b[2J\n\x1b[1m=x\n")
    for words in (("config", "check", str(file)), ("config", "print", "standalone", "-c", str(file))):
        done = called(*words)
        assert acting(done.out + done.err) == set()
