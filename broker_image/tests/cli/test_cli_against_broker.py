"""Commands against a `delaymq standalone` process."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from delaymq.client.due_times import due_in_ms
from delaymq_testing.cli_running import Standalone, called, command
from harness.ports import free_port


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    broker = Standalone(tmp_path_factory.mktemp("broker"))
    with broker.running():
        yield broker


def test_delayed_message_is_received_on_time(standalone: Standalone) -> None:
    words = ("send", "Plants", "water them", "--delay", "2s", "--keys", "a b", "--tags", "Home")
    sent = called(*words, environment=standalone.environment)
    assert sent.code == 0
    assert re.fullmatch(r"sent \w{32} to Plants \(broker-a, queue \d, due in 2s at .*, recall handle \S+\)\n", sent.out)
    got = called("receive", "Plants", "--count", "1", "--json", environment=standalone.environment)
    assert got.code == 0
    message = json.loads(got.out)
    assert (message["body"], message["tags"], message["keys"]) == ("water them", "Home", ["a", "b"])
    assert message["messageId"] in sent.out
    assert 0 <= message["latenessMs"] < 10_000
    assert message["storedMs"] - message["bornMs"] >= 2_000


@pytest.mark.parametrize("given", ["--delay", "--at"])
def test_timed_message_is_received_at_its_due_time(standalone: Standalone, given: str) -> None:
    at = datetime.now(UTC) + timedelta(milliseconds=1_500)
    time = "1500ms" if given == "--delay" else at.isoformat()
    topic = f"Timed{given.strip('-')}"
    sent = called("send", topic, "x", given, time, "--json", environment=standalone.environment)
    assert sent.code == 0
    told = json.loads(sent.out)
    assert told["recallHandle"]
    if given == "--at":
        assert told["dueMs"] == due_in_ms(at)
    got = called("receive", topic, "--count", "1", "--json", environment=standalone.environment)
    message = json.loads(got.out)
    assert (message["messageId"], message["dueMs"]) == (told["messageId"], told["dueMs"])
    assert 0 <= message["latenessMs"] < 10_000
    assert message["arrivedMs"] >= message["storedMs"] >= told["dueMs"]
    if given == "--delay":
        assert message["storedMs"] - message["bornMs"] >= 1_500


def test_group_receives_each_message_once_up_to_the_requested_number(standalone: Standalone) -> None:
    sent = called("send", "Counted", "-", "--count", "5", "--json", environment=standalone.environment, given="text")
    ids = [json.loads(line)["messageId"] for line in sent.out.splitlines()]
    assert len(set(ids)) == 5
    words = ("receive", "Counted", "--group", "g", "--json")
    first = called(*words, "--count", "2", environment=standalone.environment)
    rest = called(*words, "--timeout", "1", environment=standalone.environment)
    received = [json.loads(line) for line in (first.out + rest.out).splitlines()]
    assert (first.code, rest.code) == (0, 0)
    assert len(first.out.splitlines()) == 2
    assert sorted(each["messageId"] for each in received) == sorted(ids)
    assert {each["body"] for each in received} == {"text"}


def test_receiving_too_few_is_reported(standalone: Standalone) -> None:
    called("send", "Few", "x", environment=standalone.environment)
    words = ("receive", "Few", "--count", "2", "--timeout", "1")
    done = called(*words, environment=standalone.environment)
    assert done.code == 1
    assert "received 1 of 2 messages" in done.err


def test_receiving_nothing_states_the_reason(standalone: Standalone) -> None:
    done = called("receive", "NotYet", "--timeout", "0.5", environment=standalone.environment)
    assert (done.code, done.out) == (0, "")
    assert "topic NotYet does not exist yet" in done.err
    called("send", "Read", "x", environment=standalone.environment)
    called("receive", "Read", "--count", "1", environment=standalone.environment)
    done = called("receive", "Read", "--timeout", "0.5", environment=standalone.environment)
    assert (done.code, done.out) == (0, "")
    assert "has consumed all messages of topic Read" in done.err


def test_wrong_kind_of_address_is_reported(standalone: Standalone) -> None:
    done = called("send", "T", "x", "--namesrv", f"127.0.0.1:{standalone.listen_port}")
    assert done.code == 1
    assert "Is this a broker's address?" in done.err
    done = called("delay", "status", "--http", f"127.0.0.1:{standalone.namesrv_port}")
    assert done.code == 3
    assert "is not an HTTP server" in done.err


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_closed_pipe_loses_no_message(standalone: Standalone, form: list[str]) -> None:
    topic = f"Pipe{len(form)}"
    environment = {**os.environ, **standalone.environment}
    words = [sys.executable, "-m", "delaymq", "receive", topic, "--follow", "--group", topic, *form]
    called("send", topic, "first", environment=standalone.environment)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "first" in process.stdout.readline()
        process.stdout.close()
        called("send", topic, "second", environment=standalone.environment)
        assert process.wait(timeout=30) == 1
        assert "Traceback" not in process.stderr.read()
    again = called("receive", topic, "--group", topic, "--count", "1", environment=standalone.environment)
    assert "second" in again.out
    assert "retry" not in again.out


def test_status_shows_pending_messages(standalone: Standalone) -> None:
    called("send", "Later", "x", "--delay-level", "3", "--count", "3", environment=standalone.environment)
    status = called("delay", "status", environment=standalone.environment)
    assert status.code == 0
    assert re.search(r"^\s*3\s+5s\s+3\s+\d\d:\d\d:\d\d", status.out, re.MULTILINE)
    assert "3 pending, next due in" in status.out
    data = json.loads(called("delay", "status", "--json", environment=standalone.environment).out)
    assert [level["pending"] for level in data["levels"]][2] == 3


def test_second_start_on_the_same_store_is_rejected(standalone: Standalone) -> None:
    other = Standalone(standalone.store_path.parent)
    done = command(*other.arguments)
    assert done.returncode == 1
    assert "cannot start" in done.stderr


def test_cleanly_stopped_store_is_sound_and_can_be_inspected(tmp_path: Path) -> None:
    broker = Standalone(tmp_path)
    with broker.running() as process:
        called("send", "Kept", "x", "--delay-level", "1", environment=broker.environment)
        called("send", "Kept", "x", "--count", "3", environment=broker.environment)
        called("receive", "Kept", "--count", "4", environment=broker.environment)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    verified = called("store", "verify", str(broker.store_path))
    assert (verified.code, verified.out.split(":")[0]) == (0, "sound")
    inspected = json.loads(called("store", "inspect", str(broker.store_path), "--json").out)
    assert inspected["topics"]["Kept"] == {"delivered copy": 1, "normal": 3}
    assert "Kept" in called("store", "inspect", str(broker.store_path)).out
    _moves_to_the_real_broker_without_loss(broker)
    # The first record's body begins behind 88 bytes; sound records follow, so a flipped bit in it is damage.
    log = broker.store_path / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    data[88] ^= 1
    log.write_bytes(data)
    damaged = called("store", "verify", str(broker.store_path))
    assert damaged.code == 1
    assert "log-hole" in damaged.out


def test_unreachable_broker_of_a_route_is_reported(tmp_path: Path) -> None:
    broker = Standalone(tmp_path)
    arguments = ["namesrv", "--namesrv-port", str(broker.namesrv_port), "--store-path", str(tmp_path / "namesrv")]
    namesrv = subprocess.Popen([sys.executable, "-m", "delaymq", *arguments], stderr=subprocess.DEVNULL)
    try:
        broker.namesrv_port, own_port = free_port(), broker.namesrv_port
        with broker.config_path.open("a") as file:
            file.write(f"namesrvAddr=127.0.0.1:{own_port}\n")
        with broker.running() as process:
            # Until the broker has found the NameServer, which starts concurrently.
            told = ("send", "Route", "x", "--namesrv", f"127.0.0.1:{own_port}")
            assert any(called(*told).code == 0 for _ in range(60))
            process.kill()
            process.wait()
        done = called(*told)
    finally:
        namesrv.kill()
        namesrv.wait()
    assert done.code == 3
    assert f"127.0.0.1:{broker.listen_port}" in done.err
    assert "The NameServer lists a broker at this address" in done.err


def _moves_to_the_real_broker_without_loss(broker: Standalone) -> None:
    verify = ("store", "verify", str(broker.store_path), "--for-rocketmq")
    assert "would deliver every pending message once and on time" in called(*verify).out
    # A position at the queue's begin is how delayOffset.json looks when it is lost.
    (broker.store_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:0}}')
    done = called(*verify, "--json")
    assert done.code == 0
    prospect = json.loads(done.out)["for_rocketmq"]
    assert [each["level"] for each in prospect["repeated"]] == [1]
    assert "1 would be delivered again by RocketMQ's broker" in called(*verify).out
    assert called(*verify, "--levels", "soon").code == 2
