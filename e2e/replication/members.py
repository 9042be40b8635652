"""Members of a replicated group as processes, `delaymq broker` with a configuration file, and their record in etcd."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from delaymq.replication import Record
from delaymq.server.registers.etcd import EtcdRegister
from harness.brokers import BROKER_NAME, CLUSTER_NAME, write_properties
from harness.members import member_settings

NAMES = ("a", "b", "c")
KEY = f"/delaymq/{CLUSTER_NAME}/{BROKER_NAME}/register"
LEVEL_TABLE = "1s 2s 3s"
SEGMENT_BYTES = 1 << 20
REQUEST_S = 2.0
COMMON = {
    "brokerRole": "SYNC_MASTER",
    "messageDelayLevel": LEVEL_TABLE,
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": str(20 * 1_000),
    "snapshotIntervalBytes": str(SEGMENT_BYTES),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "100000",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "500",
    "transactionCheckMax": "1000",
}


def member_command(
    name: str,
    folder: Path,
    addresses: Mapping[str, tuple[str, int]],
    etcd_urls: Sequence[str],
    http_port: int,
    settings: Mapping[str, str],
) -> list[str]:
    """Write the configuration of a member, whose store is the folder with its name, and return its command."""
    own = member_settings(
        name, addresses, etcd_urls, store_path=folder / name, http_port=http_port, secret_path=folder / "secret"
    )
    keys = {**COMMON, **own, "listenHost": addresses[name][0], **settings}
    conf = write_properties(folder / f"{name}.conf", keys)
    return [sys.executable, "-m", "delaymq", "broker", "-c", str(conf)]


def read_record(etcd_urls: Sequence[str]) -> Record | None:
    """Return the record of the group; None before the first one. RegisterError."""

    async def read() -> Record | None:
        register = EtcdRegister(etcd_urls, KEY)
        try:
            return (await register.read(REQUEST_S)).record
        finally:
            await register.close()

    return asyncio.run(read())


def wait_until(condition: Callable[[], bool], problem: str, limit_s: float = 90.0) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, problem
        time.sleep(0.1)
