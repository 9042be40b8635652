"""Leased pins, small files over HTTP, and backups of a running broker during retention."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from delaymq.api_types.delay_settings import TopicDelaySettings
from delaymq.api_types.store import Store
from delaymq.cli.commands.store.remote_source import RemoteSource
from delaymq.cli.errors import CommandError
from delaymq.cli.target.contexts import target
from delaymq.http_client import HttpClient
from delaymq.server.api.store.pins import MAX_HOLDERS, LeasedPins, PinRefusedError
from delaymq.server.standalone import Standalone
from delaymq.store.backup.backup import Backup, BackupResult
from delaymq.store.backup.check import check_backup
from delaymq.store.errors import BackupError
from delaymq.store.message_store import MessageStore
from delaymq.store.retention import PinReport
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone, until
from delaymq_testing.store.timed_records import TimedStore

SEGMENT_BYTES = 64 * 1024
SMALL_SEGMENTS = {"mapped_file_size_commit_log": SEGMENT_BYTES, "max_message_size": 32 * 1024}


class Log:
    """A log of some size with pins that only remember."""

    def __init__(self) -> None:
        self.min_offset = 0
        self.now_ms = 1_000_000
        self.asked: dict[str, Any] = {}
        self.pins = LeasedPins(self, lambda: self.min_offset, lambda: self.now_ms)  # type: ignore[arg-type]

    def hold(self, name: str, oldest: Any, *, gives_way: bool = False) -> None:
        assert gives_way
        self.asked[name] = oldest

    def release(self, name: str) -> None:
        del self.asked[name]


def test_pin_ends_with_its_lease_unless_renewed() -> None:
    log = Log()
    assert log.pins.hold("backup-a", 500, 10_000) == log.now_ms + 10_000
    log.now_ms += 9_999
    assert log.asked["backup-a"]() == 500
    log.pins.hold("backup-a", 700, 10_000)
    log.now_ms += 9_999
    assert log.asked["backup-a"]() == 700
    log.now_ms += 1
    assert log.asked["backup-a"]() is None


def test_pin_on_deleted_data_is_rejected() -> None:
    log = Log()
    log.min_offset = 4_096
    with pytest.raises(PinRefusedError, match="starts at 4096"):
        log.pins.hold("backup-a", 4_095, 10_000)


def test_pin_holders_are_limited_and_expired_ones_freed() -> None:
    log = Log()
    for number in range(MAX_HOLDERS):
        log.pins.hold(f"backup-{number}", 0, 10_000 + number)
    with pytest.raises(PinRefusedError, match="other pins are held"):
        log.pins.hold("backup-more", 0, 10_000)
    log.pins.hold("backup-3", 5, 20_000)
    assert log.pins.release("backup-5")
    assert not log.pins.release("backup-5")
    log.pins.hold("backup-more", 0, 10_000)
    log.now_ms += 15_000
    log.pins.hold("backup-again", 0, 10_000)
    assert sorted(log.asked) == ["backup-3", "backup-again"]


async def ask(server: Standalone, method: str, path: str, body: object = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{HOST}:{server.broker.http_port}{path}", json=body) as answer,
    ):
        return answer.status, await answer.json()


def store_of(server: Standalone) -> MessageStore:
    return server.broker.broker.store


async def fill(server: Standalone, count: int, **properties: Any) -> None:
    peer = await BrokerPeer.connect(server.broker.port)
    for number in range(count):
        assert (await peer.send("T", b"x" * 2_000, KEYS=f"k{number}", **properties)).code == 0


def make_old(store: MessageStore, count: int) -> None:
    for path in sorted(Path(store.path, "commitlog").iterdir())[:count]:
        os.utime(path, (0, 0))


def backup_of(server: Standalone, folder: Path, source: RemoteSource | None = None) -> BackupResult:
    opened = source or RemoteSource(target(http=f"http://{HOST}:{server.broker.http_port}"), str(folder))
    try:
        return Backup(opened, str(folder), program="t", now_ms=lambda: 1_700_000_000_000).run()
    finally:
        opened.close()


def test_retention_keeps_pinned_data_until_released(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, **SMALL_SEGMENTS) as server:
            await fill(server, 200)
            store = store_of(server)
            await server.broker.flushing.flush()
            make_old(store, 4)
            pin = {"holder": "backup-x", "offset": SEGMENT_BYTES, "leaseMs": 60_000}
            status, told = await ask(server, "POST", "/api/v1/store/pins", pin)
            assert (status, told["offset"], told["storeId"]) == (201, SEGMENT_BYTES, store.store_id)
            assert PinReport("backup-x", SEGMENT_BYTES, store.end_offset - SEGMENT_BYTES) in store.pins.report()
            assert len([p for p in store.clean(2_000_000_000_000, at_any_hour=True) if "commitlog" in p]) == 1
            status, told = await ask(server, "POST", "/api/v1/store/pins", pin | {"offset": 0})
            assert (status, told["error"]["code"]) == (409, "offset_gone")
            assert (await ask(server, "DELETE", "/api/v1/store/pins/backup-x"))[0] == 200
            assert (await ask(server, "DELETE", "/api/v1/store/pins/backup-x"))[0] == 404
            assert store.clean(2_000_000_000_000, at_any_hour=True)

    run(scenario)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"holder": "schedule", "offset": 0, "leaseMs": 60_000},
        {"holder": "backup-" + "x" * 60, "offset": 0, "leaseMs": 60_000},
        {"holder": "backup-ä", "offset": 0, "leaseMs": 60_000},
        {"holder": "backup-x", "offset": -1, "leaseMs": 60_000},
        {"holder": "backup-x", "offset": 1 << 63, "leaseMs": 60_000},
        {"holder": "backup-x", "offset": 0, "leaseMs": 600_001},
        {"holder": "backup-x", "offset": 0, "leaseMs": 999},
    ],
)
def test_invalid_pin_is_rejected_with_an_example(tmp_path: Path, bad: dict[str, object]) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            status, told = await ask(server, "POST", "/api/v1/store/pins", bad)
            assert (status, told["error"]["code"]) == (400, "bad_request")

    run(scenario)


def test_pin_is_dropped_when_the_disk_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, **SMALL_SEGMENTS) as server:
            await fill(server, 100)
            await server.broker.flushing.flush()
            pin = {"holder": "backup-x", "offset": 0, "leaseMs": 60_000}
            assert (await ask(server, "POST", "/api/v1/store/pins", pin))[0] == 201
            store = store_of(server)
            monkeypatch.setattr(type(store._files), "disk_used_ratio", lambda self, path: 0.80)
            assert not store.clean(2_000_000_000_000)
            monkeypatch.setattr(type(store._files), "disk_used_ratio", lambda self, path: 0.86)
            assert store.clean(2_000_000_000_000)

    run(scenario)


def test_small_files_are_those_needed_by_a_restore(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            await fill(server, 3, DELAY="5")
            status, told = await ask(server, "GET", "/api/v1/store/files")
            assert status == 200
            assert told["logEndOffset"] == store_of(server).end_offset
            assert sorted(told["files"]) == [
                "config/consumerOffset.json",
                "config/delayOffset.json",
                "config/subscriptionGroup.json",
                "config/topics.json",
                "delaymq/deleted_topics.json",
            ]
            assert "T" in json.loads(told["files"]["config/topics.json"])["topicConfigTable"]
            body = {"overdue": "spread", "overMs": 60_000}
            assert (await ask(server, "POST", "/api/v1/delay/resume", body))[0] == 202
            server.broker.broker.delay_settings.put_topic("T", TopicDelaySettings(max_delay_seconds=60))
            server.broker.broker.persist_definitions()
            _, told = await ask(server, "GET", "/api/v1/store/files")
            assert json.loads(told["files"]["delaymq/delivery.json"])["mode"] == "spread"
            assert json.loads(told["files"]["delaymq/delay_settings.json"])["topics"] == {"T": {"maxDelaySeconds": 60}}

    run(scenario)


def test_pause_and_resume_report_overdue_messages_and_reject_invalid_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, message_delay_level="1s 1h") as server:
            status, told = await ask(server, "POST", "/api/v1/delay/pause", {})
            assert (status, told["held"]["mode"]) == (202, "paused")
            await fill(server, 5, DELAY="1")
            await fill(server, 1, DELAY="2")
            control = server.broker.broker.delivery.control
            await until(lambda: control.overdue(server.broker.broker.now_ms()) == 5)
            assert (await ask(server, "GET", "/api/v1/delay"))[1]["held"]["overdue"] == 5
            for bad in ({}, {"overdue": "lose"}, {"overdue": "spread"}, {"overdue": "drop"}, {"overdue": 1}):
                status, told = await ask(server, "POST", "/api/v1/delay/resume", bad)
                assert (status, told["error"]["code"]) == (400, "bad_request")
            now_ms = server.broker.broker.now_ms()
            status, told = await ask(server, "POST", "/api/v1/delay/resume", {"overdue": "drop", "upToMs": now_ms})
            assert (status, told["overdue"], told["held"]["mode"]) == (202, 5, "drop")
            await until(lambda: control.policy is None)
            assert (await ask(server, "GET", "/api/v1/delay"))[1]["held"] is None
            assert server.broker.broker.delivery.counters.refused == 5
            assert sum(server.broker.broker.delivery.pending().values()) == 1

    run(scenario)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_running_broker_is_backed_up_during_retention(tmp_path: Path, flush: str) -> None:
    async def scenario() -> None:
        settings = {**SMALL_SEGMENTS, "flush_disk_type": flush}
        async with standalone(tmp_path / "a", http=True, **settings) as server:
            await fill(server, 150)
            store = store_of(server)
            loop = asyncio.get_running_loop()
            folder = tmp_path / "backup"

            class Watched(RemoteSource):
                """Old segments are cleaned away as soon as the first is read."""

                cleaned: list[str] | None = None

                def read(self, base: int, position: int, count: int) -> bytes:
                    if self.cleaned is None:
                        self.cleaned = asyncio.run_coroutine_threadsafe(clean(), loop).result(60)
                    return super().read(base, position, count)

            async def clean() -> list[str]:
                await server.broker.flushing.flush()
                make_old(store, 3)
                return store.clean(server.broker.broker.now_ms(), at_any_hour=True)

            watched = Watched(target(http=f"http://{HOST}:{server.broker.http_port}"), str(folder))
            first = await asyncio.to_thread(backup_of, server, folder, watched)
            assert watched.cleaned == []
            assert (first.manifest.start_offset, first.manifest.end_offset) == (0, store.confirmed_offset)
            assert first.manifest.broker_name == server.broker.config.broker_name
            assert [pin.holder for pin in store.pins.report() if pin.holder.startswith("backup-")] == []
            # Nobody holds them now: the next backup begins where the log does.
            assert await clean()
            await fill(server, 20)
            second = await asyncio.to_thread(backup_of, server, folder)
            assert second.manifest.start_offset == store.min_offset > 0
            assert second.deleted_segments == 3
            assert second.copied_bytes == second.manifest.end_offset - first.manifest.end_offset
            assert check_backup(str(folder)).exit_code == 0

    run(scenario)


def test_version_raised_during_a_backup_of_a_running_broker_is_included(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path / "a", http=True) as server:
            await fill(server, 3)
            store = store_of(server)
            loop = asyncio.get_running_loop()
            first = await asyncio.to_thread(backup_of, server, tmp_path / "backup")
            assert first.manifest.minimum_reader == 1

            class Late(RemoteSource):
                """The broker stores the first timed message after the first description and before the last one."""

                def _confirmed(self, needed: int) -> Store:
                    asyncio.run_coroutine_threadsafe(schedule(), loop).result(60)
                    return super()._confirmed(needed)

            async def schedule() -> None:
                TimedStore(store).schedule("late", store.last_store_timestamp_ms + 3_600_000)

            late = Late(target(http=f"http://{HOST}:{server.broker.http_port}"), str(tmp_path / "backup"))
            second = await asyncio.to_thread(backup_of, server, tmp_path / "backup", late)
            assert (second.manifest.minimum_reader, second.manifest.end_offset) == (2, store.end_offset)
            assert second.manifest.end_offset > first.manifest.end_offset

    run(scenario)


def test_backup_without_broker_or_token_says_what_to_do(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_token="secret") as server:
            with pytest.raises(CommandError, match=r"returned 401: give the broker's httpToken"):
                await asyncio.to_thread(backup_of, server, tmp_path / "backup")
        with pytest.raises(CommandError, match=r"cannot connect to a broker at http://127.0.0.1:1 .*is it running"):
            RemoteSource(target(http="http://127.0.0.1:1"), str(tmp_path)).state()

    run(scenario)


def test_backup_ends_when_its_address_leads_to_another_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path / "a", http=True) as server, standalone(tmp_path / "b", http=True) as other:
            await fill(server, 3)
            await fill(other, 3)

            class Switching(RemoteSource):
                def read(self, base: int, position: int, count: int) -> bytes:
                    self._client.client.close()
                    url = f"http://{HOST}:{other.broker.http_port}"
                    self._client.client = HttpClient(url, timeout_s=30, max_answer_bytes=1 << 20)
                    return super().read(base, position, count)

            source = Switching(target(http=f"http://{HOST}:{server.broker.http_port}"), str(tmp_path / "backup"))
            with pytest.raises(BackupError, match="now reaches another store"):
                await asyncio.to_thread(backup_of, server, tmp_path / "backup", source)

    run(scenario)
