"""Process of one member of a replicated group, whose register is in etcd: `member_process.py SETTINGS`.

SETTINGS is a JSON file with `name`, `members` (addresses by name), `path`, `secret`, `etcd` (URLs), and `settings` of
the group. When the member has to restart, the process executes itself again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import uvloop
from delaymq.config import BrokerConfig
from delaymq.replication import Acknowledge, Settings
from delaymq.server.broker_server import BrokerServer
from delaymq.server.registers.etcd import EtcdRegister
from delaymq.server.replication.replica import Membership, Replica
from delaymq.server.replication.secret import GroupSecret

KEY = "/delaymq/DefaultCluster/broker-a/register"
LEVELS = "1s 2s 3s"
SEGMENT_BYTES = 1 << 20


async def _run(stated: dict[str, object]) -> Callable[[], None] | None:
    """Run until a signal, or until the member has to restart; return what to do then with the closed store."""
    members: dict[str, tuple[str, int]] = {name: (host, port) for name, (host, port) in stated["members"].items()}  # type: ignore[attr-defined]
    name, settings = str(stated["name"]), dict(stated["settings"])  # type: ignore[call-overload]
    config = BrokerConfig(
        store_path_root_dir=str(stated["path"]),
        listen_port=members[name][1],
        fast_port_enable=False,
        message_delay_level=LEVELS,
        mapped_file_size_commit_log=SEGMENT_BYTES,
        mapped_file_size_consume_queue=20 * 1_000,
        snapshot_interval_bytes=SEGMENT_BYTES,
        max_hash_slot_num=10_000,
        max_index_num=100_000,
        namesrv_addr="",
    )
    server = BrokerServer.open(config, http=False, follows=True)
    ended = asyncio.Event()
    actions: list[Callable[[], None]] = []
    restarts = False

    def restart(reason: str, action: Callable[[], None] | None) -> None:
        nonlocal restarts
        restarts = True
        actions.extend([] if action is None else [action])
        ended.set()

    acknowledge = Acknowledge(settings.pop("acknowledge", "Appended"))
    membership = Membership(
        name=name,
        members=members,
        secret=GroupSecret(str(stated["secret"])),
        settings=Settings(acknowledge=acknowledge, **settings),
    )
    server.replica = Replica(server, membership, EtcdRegister(stated["etcd"], KEY), restart)  # type: ignore[arg-type]
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await server.start()
    await ended.wait()
    await server.stop()
    for action in actions:
        action()
    return (lambda: os.execv(sys.executable, [sys.executable, *sys.argv])) if restarts else None


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    following = uvloop.run(_run(json.loads(Path(sys.argv[1]).read_text())))
    if following is not None:
        following()


if __name__ == "__main__":
    main()
