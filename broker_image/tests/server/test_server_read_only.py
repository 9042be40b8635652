"""A read-only broker serves everything that changes nothing, and changes nothing."""

import os
from pathlib import Path
from typing import Any

import aiohttp
from delaymq.clock import now_ms
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.store.backup.backup import Backup
from delaymq.store.backup.source import FolderSource
from delaymq_testing.running_server import HOST, BrokerPeer, run, send_command, standalone, until

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "max_message_size": 16 * 1024,
    "message_delay_level": "1s 1h",
}


def content_of(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(each.relative_to(path)): (each.stat().st_mtime_ns, each.read_bytes())
        for each in path.rglob("*")
        if each.is_file()
    }


def test_store_and_backup_are_served_unchanged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path / "a", **SMALL) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            for number in range(60):
                assert (await peer.send("T", b"%d" % number + b"." * 2_000)).code == 0
            assert (await peer.send("T", b"overdue soon", DELAY="1")).code == 0
            held = server.broker.broker.delivery.control
            held.pause_locally()
            await until(lambda: held.overdue(now_ms()) == 1)
            path = Path(server.broker.broker.store.path)
        Backup(FolderSource(str(path)), str(tmp_path / "backup"), program="t", now_ms=now_ms).run()
        os.unlink(path / "delaymq/delivery.json")  # only the read-only start holds back overdue messages
        for folder in (path, tmp_path / "backup"):
            before = content_of(folder)
            await look_at(tmp_path, folder)
            assert content_of(folder) == before

    async def look_at(base: Path, folder: Path) -> None:
        changes = {**SMALL, "read_only": True, "store_path_root_dir": str(folder)}
        async with standalone(base / "other", http=True, **changes) as server:
            broker = server.broker.broker
            peer = await BrokerPeer.connect(server.broker.port)
            pulled = await peer.pull("T", 0)
            assert pulled.code == ResponseCode.SUCCESS
            assert b"0...." in bytes(pulled.body)
            for refused in (
                send_command("T"),
                send_command("New"),
                request_command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
                request_command(RequestCode.CLEAN_UNUSED_TOPIC),
            ):
                answer = await peer.connection.request(refused)
                assert answer.code == ResponseCode.NO_PERMISSION
                assert "is read-only (readOnly=true)" in (answer.remark or "")
            # Routes permit reading only, and what is overdue stays where it is.
            route = server.namesrv.namesrv.routes.route("T")
            assert route is not None
            assert [queues.perm for queues in route.queue_datas] == [4]
            assert broker.delivery.next_wakeup_ms() is None
            assert broker.delivery.control.overdue(now_ms()) == 1
            async with aiohttp.ClientSession() as session:
                url = f"http://{HOST}:{server.broker.http_port}"
                async with session.get(f"{url}/readyz") as ready:
                    assert ready.status == 200
                async with session.post(f"{url}/api/v1/delay/resume", json={"overdue": "deliver"}) as told:
                    assert (told.status, (await told.json())["error"]["code"]) == (409, "read_only")

    run(scenario)
