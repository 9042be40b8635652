"""Settings by namespace and key, and their file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from delaymq.config import NamesrvConfig
from delaymq.namesrv import NameServer, NamesrvError, kv, open_name_server
from delaymq.namesrv.kv import KVSettings
from delaymq.protocol.bodies import KVTable, RegisterBody
from delaymq.protocol.command import Response, request_command
from delaymq.protocol.errors import RequestError
from delaymq_testing.namesrv_world import Peer
from delaymq_testing.step_runner import at_once


def ask(server: NameServer, code: int, body: bytes = b"", **fields: str) -> Response:
    result = server.handle(Peer(1), request_command(code, fields, body))
    return result if isinstance(result, Response) else server.guarded(code, lambda: at_once(result))


def name_server(path: Path | str = "", **options: Any) -> NameServer:
    return open_name_server(NamesrvConfig(kv_config_path=str(path), **options), lambda: 0)


def test_settings_are_put_read_listed_and_deleted() -> None:
    server = name_server()
    assert ask(server, 101, namespace="N", key="k").code == 22
    assert ask(server, 219, namespace="N").code == 22
    assert ask(server, 100, namespace="N", key="k", value="v").code == 0
    assert ask(server, 101, namespace="N", key="k").fields == {"value": "v"}
    assert KVTable.decode(ask(server, 219, namespace="N").body).table == {"k": "v"}
    assert ask(server, 102, namespace="N", key="k").code == 0
    assert ask(server, 102, namespace="N", key="k").code == 0
    assert ask(server, 101, namespace="N", key="k").code == 22


def test_settings_survive_a_restart_in_rocketmqs_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kvConfig.json"
    first = name_server(path)
    ask(first, 100, namespace="N", key="k", value="schön")
    ask(first, 100, namespace="N", key="other", value="2")
    assert json.loads(path.read_bytes()) == {"configTable": {"N": {"k": "schön", "other": "2"}}}
    assert ask(name_server(path), 101, namespace="N", key="k").fields == {"value": "schön"}
    assert sorted(each.name for each in path.parent.iterdir()) == ["kvConfig.json", "kvConfig.json.bak"]


def test_broken_file_is_replaced_by_its_backup(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "kvConfig.json"
    server = name_server(path)
    ask(server, 100, namespace="N", key="k", value="1")
    ask(server, 100, namespace="N", key="k", value="2")
    path.write_bytes(b'{"configTable":{"N":')
    assert ask(name_server(path), 101, namespace="N", key="k").fields == {"value": "1"}
    assert "is unreadable and is renamed" in caplog.text


def test_settings_that_a_start_would_reject_are_rejected_and_the_file_stays_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "MAX_FILE_BYTES", 5_000)
    path = tmp_path / "kvConfig.json"
    server = name_server(path)
    assert ask(server, 100, namespace="N", key="k", value="1").code == 0
    # A few characters are many bytes in the file.
    answers = [ask(server, 100, namespace="N", key=f"k{number}", value="\x01" * 100) for number in range(20)]
    assert {answer.code for answer in answers} == {0, 1}
    assert "more than the limit of 5000: delete some" in str(answers[-1].remark)
    assert path.stat().st_size <= 5_000
    assert ask(name_server(path), 101, namespace="N", key="k").fields == {"value": "1"}


def test_unreadable_files_are_kept_and_replace_no_valid_backup(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    server = name_server(path)
    for value in ("1", "2"):
        ask(server, 100, namespace="N", key="k", value=value)
    path.write_bytes(b"{")
    server = name_server(path)
    assert path.with_name("kvConfig.json.unreadable").read_bytes() == b"{"
    ask(server, 100, namespace="N", key="other", value="3")
    assert b'"1"' in path.with_name("kvConfig.json.bak").read_bytes()
    path.write_bytes(b"[")
    path.with_name("kvConfig.json.bak").write_bytes(b"]")
    name_server(path)
    kept = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert kept == {
        "kvConfig.json.unreadable": b"{",
        "kvConfig.json.unreadable.2": b"[",
        "kvConfig.json.bak.unreadable": b"]",
    }


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"configTable":[]}', '{"configTable":{"N":1}}', "\xff"])
def test_missing_files_do_not_prevent_the_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(text, "latin-1")
    assert ask(name_server(path), 219, namespace="N").code == 22


def test_unreadable_path_is_a_descriptive_error(tmp_path: Path) -> None:
    with pytest.raises(NamesrvError, match="cannot read"):
        name_server(tmp_path)


def test_unwritable_change_is_rejected_without_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kvConfig.json"
    server = name_server(path)
    ask(server, 100, namespace="N", key="k", value="1")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    answer = ask(server, 100, namespace="N", key="k", value="2")
    assert answer.code == 1
    assert "nothing was changed" in (answer.remark or "")
    assert ask(server, 101, namespace="N", key="k").fields == {"value": "1"}
    monkeypatch.undo()
    assert ask(name_server(path), 101, namespace="N", key="k").fields == {"value": "1"}


def test_number_and_size_of_settings_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = KVSettings(None)
    monkeypatch.setattr(kv, "MAX_ENTRIES", 2)
    at_once(settings.put("N", "a", "1"))
    at_once(settings.put("N", "b", "1"))
    at_once(settings.put("N", "b", "2"))
    with pytest.raises(RequestError, match="2 settings already"):
        at_once(settings.put("N", "c", "1"))
    with pytest.raises(RequestError, match="shorten it"):
        at_once(settings.put("N", "a", "x" * kv.MAX_ENTRY_CHARACTERS))


def test_total_size_of_settings_is_limited_and_may_always_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = KVSettings(None)
    monkeypatch.setattr(kv, "MAX_CHARACTERS", 31)
    at_once(settings.put("N", "a", "x" * 10))
    at_once(settings.put("N", "b", "x" * 17))
    with pytest.raises(RequestError, match="would exceed 31 characters: delete some"):
        at_once(settings.put("N", "a", "x" * 11))
    at_once(settings.put("N", "b", "x" * 9))
    at_once(settings.put("N", "a", "x" * 11))
    at_once(settings.delete("N", "b"))
    assert settings.table("N") == {"a": "x" * 11}
    monkeypatch.setattr(kv, "MAX_CHARACTERS", 5)  # as with a file that is too long already
    with pytest.raises(RequestError, match="5 characters"):
        at_once(settings.put("N", "c", ""))
    at_once(settings.put("N", "a", "x" * 10))


def test_empty_namespaces_do_not_accumulate() -> None:
    settings = KVSettings(None)
    for number in range(10):
        at_once(settings.put(f"N{number}", "k", "1"))
        at_once(settings.delete(f"N{number}", "k"))
        assert settings.table(f"N{number}") == {}
    assert [number for number in range(10) if settings.table(f"N{number}") is not None] == [9]


def register(server: NameServer) -> Response:
    names = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "haServerAddr": "x"}
    body = RegisterBody().encode()
    return ask(server, 103, body, **names, brokerId="0")


def test_brokers_get_the_order_settings_with_each_response() -> None:
    server = name_server()
    assert register(server).body == b""
    ask(server, 100, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
    assert KVTable.decode(register(server).body).table == {"T": "broker-a:4"}


@pytest.mark.parametrize("enabled", [False, True])
def test_routes_carry_the_order_setting_only_if_enabled(enabled: bool) -> None:
    from delaymq.protocol.bodies import TopicConfig, TopicTable

    server = name_server(order_message_enable=enabled)
    ask(server, 100, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
    names = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "haServerAddr": "x"}
    body = RegisterBody(TopicTable(topic_config_table={"T": TopicConfig("T")})).encode()
    server.handle(Peer(1), request_command(103, {**names, "brokerId": "0"}, body))
    route = json.loads(ask(server, 105, topic="T").body)
    assert route.get("orderTopicConf") == ("broker-a:4" if enabled else None)
