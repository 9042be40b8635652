"""Plain slaves of this broker: who may connect, what they are sent, and which segments are kept for them."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delaymq.clock import now_ms
from delaymq.protocol.ha import encode_range, encode_ranges
from delaymq.server.ha.slave_connection import SlaveConnection
from delaymq.store.segments import segment_name
from delaymq.throttled_log import ThrottledLogger, fields

if TYPE_CHECKING:
    from delaymq.config import BrokerConfig
    from delaymq.store.message_store import MessageStore

MAX_SLAVES: Final = 8
"""Connections of plain slaves. Each may buffer `MAX_BUFFERED_BYTES` and `READ_BYTES`."""
READ_BYTES: Final = 512 << 10
"""Bytes of the log that are read at a time, in a thread."""
POLL_S: Final = 0.01
"""Interval of looking for new bytes: appends stay free of any cost for plain slaves."""
KEEP_S: Final = 600.0
"""Time for which segments are kept for a slave that has disconnected, for example to restart."""
DRAIN_S: Final = 3.0
"""Time that a clean stop waits for slaves to acknowledge the end of the log."""
PIN: Final = "plain slaves"
_WATCH_S: Final = 1.0

_logger = logging.getLogger(__name__)
_throttled = ThrottledLogger(_logger, now_ms)


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """State of a connected slave."""

    address: str
    acknowledged: int
    sent: int
    connected_s: float


class PlainSlaves:
    """All plain slaves of one broker. Call `start` on the event loop, then `stop`, once each."""

    def __init__(self, store: MessageStore, config: Callable[[], BrokerConfig], bound: socket.socket) -> None:
        self._store = store
        self._config = config
        self._bound = bound
        self._slaves: dict[SlaveConnection, None] = {}
        self._left: dict[str, tuple[int, float]] = {}
        """Offsets that disconnected slaves had acknowledged, by host, and the times at which they are forgotten."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.AbstractServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._allowed_at = 0.0

    def start(self) -> None:
        """Listen."""
        self._store.pins.hold(PIN, self._pinned, gives_way=True)
        self._bound.listen(MAX_SLAVES)
        self._tasks = [
            asyncio.create_task(self._serve(), name="plain slaves"),
            asyncio.create_task(self._watch(), name="silent plain slaves"),
        ]

    async def _serve(self) -> None:
        self._server = await self._loop.create_server(lambda: SlaveConnection(self._store, self), sock=self._bound)
        await self._send()

    async def stop(self) -> None:
        """Wait until the slaves have the end of the log, for up to DRAIN_S, and close the connections."""
        if self._server is not None:
            self._server.close()
        self._bound.close()
        try:
            async with asyncio.timeout(DRAIN_S):
                while self._behind():  # noqa: ASYNC110 - acknowledgements are rare enough to look for them
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pass
        if behind := self._behind():
            _logger.warning("stopped before these plain slaves had the end of the log: %s", ", ".join(behind))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slave in list(self._slaves):
            slave.close()
        self._store.pins.release(PIN)

    def _behind(self) -> list[str]:
        end = self._store.confirmed_offset
        return [slave.address for slave in self._slaves if slave.state.acknowledged < end]

    def status(self) -> list[SlaveStatus]:
        """Return the connected slaves."""
        now = self._loop.time()
        states = [(slave.address, slave.state) for slave in self._slaves]
        return [
            SlaveStatus(address, max(state.acknowledged, 0), max(state.sent, 0), now - state.connected_at)
            for address, state in states
        ]

    # Registry of the connections

    def opened(self, slave: SlaveConnection) -> str:
        """Add a connection; return why it is refused, or an empty text."""
        peer = ipaddress.ip_address(slave.host.partition("%")[0])
        if not any(peer in network for network in self._config().plain_slave_networks):
            return "its address is not in haPlainSlaveAddresses"
        if len(self._slaves) >= MAX_SLAVES:
            return f"{MAX_SLAVES} plain slaves are connected"
        self._slaves[slave] = None
        _logger.info("plain slave connected", extra=fields(peer=slave.address))
        return ""

    def closed(self, slave: SlaveConnection) -> None:
        """Remove a connection, and keep the segments that its slave still needs for a while."""
        if self._slaves.pop(slave, 0) is not None:
            return
        _logger.info("plain slave disconnected", extra=fields(peer=slave.address))
        if slave.state.is_started:
            self._left.pop(slave.host, None)
            self._left[slave.host] = slave.state.acknowledged, self._loop.time() + KEEP_S
            while len(self._left) > MAX_SLAVES:
                del self._left[next(iter(self._left))]

    def refuse(self, slave: SlaveConnection, reason: str) -> None:
        """Close a connection for a reason, which is logged."""
        _throttled.warning("closed the connection of the plain slave %s: %s", slave.host, reason, peer=slave.address)
        slave.abort()

    def wake(self) -> None:
        """Continue sending."""
        self._wake.set()

    # Segments

    def _pinned(self) -> int | None:
        """Return the oldest offset that a slave still needs, and that is not too far from the end of the log."""
        now = self._loop.time()
        self._left = {host: left for host, left in self._left.items() if left[1] > now}
        needed = [slave.state.acknowledged for slave in self._slaves if slave.state.is_started]
        connected = {slave.host for slave in self._slaves}
        needed += [offset for host, (offset, _) in self._left.items() if host not in connected]
        if not needed:
            return None
        return max(min(needed), self._store.end_offset - self._config().ha_pin_max_bytes)

    # Sending

    async def _send(self) -> None:
        """Send to all slaves in turn, a part of the log each time, so that none of them waits for a slower one."""
        while True:
            self._wake.clear()
            ready = [slave for slave in self._slaves if self._is_ready(slave)]
            for slave in ready:
                try:
                    await self._send_part(slave)
                except OSError as error:
                    self.refuse(slave, f"the log cannot be read at offset {slave.state.sent}: {error}")
            if not ready:
                self._send_heartbeats()
                await self._wait(POLL_S if self._slaves else None)

    async def _wait(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _is_ready(self, slave: SlaveConnection) -> bool:
        state = slave.state
        return state.is_started and slave.is_open and not slave.is_paused and state.sent < self._store.confirmed_offset

    async def _send_part(self, slave: SlaveConnection) -> None:
        config, state, start = self._config(), slave.state, slave.state.sent
        await asyncio.sleep(max(self._allowed_at - self._loop.time(), 0))
        file_bytes = self._store.options.commit_log_file_bytes
        base = start - start % file_bytes
        # RocketMQ's slave writes a range to one segment. A part takes at most a tenth of a second.
        end = min(
            self._store.confirmed_offset,
            base + file_bytes,
            start + min(READ_BYTES, max(config.ha_max_bytes_per_second // 10, 1)),
        )
        path = f"{self._store.path}/commitlog/{segment_name(base)}"
        data = await self._loop.run_in_executor(None, _read, path, start - base, end - start)
        if not slave.is_open:
            return
        most = config.ha_transfer_batch_size
        slave.send(encode_ranges(start, data, most))
        now = self._loop.time()
        state.note_sent(end, -(-len(data) // most), now)
        self._allowed_at = max(now, self._allowed_at) + len(data) / config.ha_max_bytes_per_second

    def _send_heartbeats(self) -> None:
        now = self._loop.time()
        interval_s = self._config().ha_send_heartbeat_interval / 1_000
        for slave in self._slaves:
            state = slave.state
            if state.is_started and slave.is_open and not slave.is_paused and now - state.sent_at >= interval_s:
                slave.send(encode_range(state.sent))
                state.note_sent(state.sent, 1, now)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            now, housekeeping_s = self._loop.time(), self._config().ha_housekeeping_interval / 1_000
            for slave in list(self._slaves):
                if problem := slave.state.overdue(housekeeping_s, now):
                    self.refuse(slave, problem)


def _read(path: str, position: int, size: int) -> bytes:
    """Return `size` bytes of a segment. OSError: it cannot be read, or ends before."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(descriptor, size, position)
    finally:
        os.close(descriptor)
    if len(data) < size:
        raise OSError(f"{path} has {len(data)} of {size} bytes at {position}")
    return data
