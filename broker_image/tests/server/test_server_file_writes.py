"""File changes that clients request: durable before the response, serialised, and non-blocking."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
from delaymq.config import BrokerConfig, NamesrvConfig
from delaymq.config.running import RunningSettings
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.server.requests.file_writes import MAX_WAITING_PER_CONNECTION
from delaymq.transport import TransportError
from delaymq_testing.running_server import BrokerPeer, run, standalone, until

RULES = "globalWhiteRemoteAddresses: [127.0.0.1]\naccounts:\n- {accessKey: operators, secretKey: secret-of-them}\n"
LONG_MS = 60_000


class HeldDisk:
    """Syncs of files whose names have `word` in them wait; on the loop's own thread they fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
        self.may_go_on = threading.Event()
        self.waiting = 0
        self.failure: OSError | None = None
        self._word = word
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._held)

    def _held(self, descriptor: int) -> None:
        if self._word in Path(os.readlink(f"/proc/self/fd/{descriptor}")).name:
            assert threading.current_thread() is not threading.main_thread(), "the loop waits for the disk"
            self.waiting += 1
            assert self.may_go_on.wait(60)
            if self.failure is not None:
                raise self.failure
        self._fsync(descriptor)


def put_account(key: str) -> Command:
    return request_command(
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": key, "secretKey": f"secret-of-{key}"}
    )


def delete_account(key: str) -> Command:
    return request_command(RequestCode.DELETE_ACL_CONFIG, {"accessKey": key})


def set_white(addresses: str) -> Command:
    return request_command(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": addresses})


def put_kv(key: str, value: str) -> Command:
    return request_command(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": key, "value": value})


def rules_file(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(RULES)
    return path


def test_rules_are_written_concurrently_with_requests_and_no_change_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rules_file(tmp_path)

    async def scenario() -> None:
        async with standalone(tmp_path, acl_enable=True, acl_config_path=str(path)) as server:
            disk = HeldDisk(monkeypatch, "plain_acl")
            first, second = [await BrokerPeer.connect(server.broker.port) for _ in range(2)]
            changes = [
                first.connection.start_request(put_account("application"), LONG_MS),
                second.connection.start_request(put_account("neighbours"), LONG_MS),
                first.connection.start_request(delete_account("operators"), LONG_MS),
                second.connection.start_request(set_white("127.0.0.1,10.9.8.7"), LONG_MS),
            ]
            await until(lambda: disk.waiting)
            assert (await first.send("T")).code == ResponseCode.SUCCESS
            assert not any(change.done() for change in changes)
            access = server.broker.broker.access
            assert access is not None
            assert len(access.rules.accounts) == 1
            assert path.read_text() == RULES
            disk.may_go_on.set()
            assert [(await change).code for change in changes] == [ResponseCode.SUCCESS] * 4
            assert len(access.rules.accounts) == 2
            text = path.read_text()
            assert all(each in text for each in ("application", "neighbours", "10.9.8.7", "counter: 4"))
            assert "operators" not in text

    run(scenario)


def test_failed_write_keeps_the_rules_and_later_changes_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rules_file(tmp_path)

    async def scenario() -> None:
        async with standalone(tmp_path, acl_enable=True, acl_config_path=str(path)) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            access = server.broker.broker.access
            assert access is not None
            disk = HeldDisk(monkeypatch, "plain_acl")
            disk.may_go_on.set()
            disk.failure = OSError(28, "No space left on device")
            refused = await peer.connection.request(put_account("application"), LONG_MS)
            assert refused.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
            assert "No space left on device" in (refused.remark or "")
            assert (len(access.rules.accounts), path.read_text()) == (1, RULES)
            disk.failure = None
            assert (await peer.connection.request(put_account("application"), LONG_MS)).code == ResponseCode.SUCCESS
            assert len(access.rules.accounts) == 2

    run(scenario)


def test_oneway_change_is_made(tmp_path: Path) -> None:
    path = rules_file(tmp_path)

    async def scenario() -> None:
        async with standalone(tmp_path, acl_enable=True, acl_config_path=str(path)) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            peer.connection.send_oneway(put_account("application"))
            access = server.broker.broker.access
            assert access is not None
            await until(lambda: len(access.rules.accounts) == 2)
            assert (await peer.send("T")).code == ResponseCode.SUCCESS

    run(scenario)


def test_nameserver_settings_are_written_concurrently_with_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kvConfig.json"

    async def scenario() -> None:
        async with standalone(tmp_path, namesrv_kv_config_path=str(path)) as server:
            disk = HeldDisk(monkeypatch, "kvConfig")
            first, second = [await BrokerPeer.connect(server.namesrv.port) for _ in range(2)]
            changes = [
                first.connection.start_request(put_kv("a", "1"), LONG_MS),
                second.connection.start_request(put_kv("b", "2"), LONG_MS),
            ]
            await until(lambda: disk.waiting)
            info = await first.connection.request(request_command(RequestCode.GET_BROKER_CLUSTER_INFO))
            assert info.code == ResponseCode.SUCCESS
            assert not any(change.done() for change in changes)
            kv = server.namesrv.namesrv.kv
            assert kv.table("N") is None
            disk.may_go_on.set()
            assert [(await change).code for change in changes] == [ResponseCode.SUCCESS] * 2
            assert kv.table("N") == {"a": "1", "b": "2"}
            delete = request_command(RequestCode.DELETE_KV_CONFIG, {"namespace": "N", "key": "a"})
            assert (await first.connection.request(delete)).code == ResponseCode.SUCCESS
            assert path.read_bytes() == b'{"configTable":{"N":{"b":"2"}}}'

    run(scenario)


def test_concurrent_changes_of_both_servers_in_one_file_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "both.conf"
    path.write_text("# mine\n")

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            server.broker.broker.settings = RunningSettings(BrokerConfig, file=path)
            server.namesrv.namesrv.settings = RunningSettings(NamesrvConfig, file=path)
            disk = HeldDisk(monkeypatch, "both.conf")
            of_broker = await BrokerPeer.connect(server.broker.port)
            of_namesrv = await BrokerPeer.connect(server.namesrv.port)
            changes = [
                of_broker.connection.start_request(
                    request_command(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=24"), LONG_MS
                ),
                of_namesrv.connection.start_request(
                    request_command(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true"), LONG_MS
                ),
            ]
            await until(lambda: disk.waiting)
            assert (await of_broker.send("T")).code == ResponseCode.SUCCESS
            assert not any(change.done() for change in changes)
            assert server.broker.broker.config.file_reserved_time != 24
            # What changes meanwhile otherwise is not undone.
            server.broker.decommission()
            disk.may_go_on.set()
            assert [(await change).code for change in changes] == [ResponseCode.SUCCESS] * 2
            assert path.read_text() == "# mine\nfileReservedTime=24\norderMessageEnable=true\n"
            config = server.broker.broker.config
            assert (config.file_reserved_time, config.broker_permission) == (24, 4)
            assert server.namesrv.namesrv.config.order_message_enable

    run(scenario)


def test_many_concurrent_changes_of_one_client_block_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kvConfig.json"

    async def scenario() -> None:
        async with standalone(tmp_path, namesrv_kv_config_path=str(path)) as server:
            disk = HeldDisk(monkeypatch, "kvConfig")
            greedy, polite = [await BrokerPeer.connect(server.namesrv.port) for _ in range(2)]
            many = [
                greedy.connection.start_request(put_kv(f"k{number}", "1"), LONG_MS)
                for number in range(MAX_WAITING_PER_CONNECTION + 10)
            ]
            refused = [await answer for answer in many[MAX_WAITING_PER_CONNECTION:]]
            assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}
            one = polite.connection.start_request(put_kv("mine", "1"), LONG_MS)
            disk.may_go_on.set()
            assert (await one).code == ResponseCode.SUCCESS
            taken = [(await answer).code for answer in many[:MAX_WAITING_PER_CONNECTION]]
            assert taken == [ResponseCode.SUCCESS] * MAX_WAITING_PER_CONNECTION
            again = await greedy.connection.request(put_kv("again", "1"), LONG_MS)
            assert again.code == ResponseCode.SUCCESS

    run(scenario)


def test_stop_finishes_the_current_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kvConfig.json"

    async def scenario() -> None:
        async with standalone(tmp_path, namesrv_kv_config_path=str(path)) as server:
            disk = HeldDisk(monkeypatch, "kvConfig")
            peer = await BrokerPeer.connect(server.namesrv.port)
            change = peer.connection.start_request(put_kv("a", "1"), LONG_MS)
            left = peer.connection.start_request(put_kv("b", "1"), LONG_MS)
            await until(lambda: disk.waiting)
            stopping = asyncio.create_task(server.namesrv.stop())
            await asyncio.sleep(0)
            disk.may_go_on.set()
            await stopping
            assert (await change).code == ResponseCode.SUCCESS
            with pytest.raises(TransportError):
                await left
            assert path.read_bytes() == b'{"configTable":{"N":{"a":"1"}}}'

    run(scenario)
