"""This broker as a plain slave: it appends the log of a master, and takes over its tables."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delaymq.broker.following.master_tables import FollowedTables
from delaymq.protocol.errors import ProtocolError, RequestError
from delaymq.protocol.ha import RangeReader, encode_report
from delaymq.server.ha.errors import FollowError
from delaymq.server.ha.master_requests import LogBounds, MasterRequests, MasterTables
from delaymq.store.errors import StoreError
from delaymq.throttled_log import fields
from delaymq.transport import TransportError
from delaymq.transport.addresses import host_and_port

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

READ_BYTES: Final = 256 << 10
SLICE_S: Final = 0.005
"""Time after which other work of the event loop gets its turn."""
FIRST_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 5.0
BOUNDS_INTERVAL_S: Final = 1.0
"""Interval of requesting the end of the master's log, for the number of bytes behind."""
TABLES_INTERVAL_S: Final = 10.0
"""Interval of requesting the master's tables, as RocketMQ's slaves do."""
FINAL_TIMEOUT_S: Final = 3.0
"""Time for the last tables at a clean stop."""
_LAST_BYTES_POLL_S: Final = 0.02
_FOLLOW_ERRORS: Final = (FollowError, OSError, ProtocolError, RequestError, StoreError, TransportError)

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class FollowStatus:
    """State of a plain slave, as shown to administrators."""

    problem: str = "not connected yet"
    """Why the log is not followed; empty if it is."""
    master_end: int | None = None
    """End of the master's log when it was last requested."""
    caught_up: bool = False
    """Whether the log had reached a known end of the master's, since the connection began."""
    tables_at_ms: int | None = None
    """Time of the last tables that are complete here."""
    tables_problem: str = ""


class PlainSlave:
    """Follows a master until the process stops. Call `start` on the event loop, then `stop`, once each."""

    def __init__(self, broker: Broker, flush: Callable[[], Awaitable[None]]) -> None:
        """`flush` waits until the disk has the current end of the log."""
        self.status = FollowStatus()
        host, port = broker.config.master_ha_address
        self.address = host_and_port(host, port)
        self._host, self._port = host, port
        self._broker = broker
        self._store = broker.store
        self._flush = flush
        self._tables = FollowedTables(broker.topics, broker.groups, broker.offsets, broker.store.config_files)
        self._waiting: MasterTables | None = None
        """Offsets that refer to bytes of the log that are not here yet."""
        self._skips_oldest = False
        """Whether the master began at its last segment, so that the first record has to be requested."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start following."""
        self._tasks = [
            asyncio.create_task(self._repeat(self._follow, self._note_problem), name="log of the master"),
            asyncio.create_task(
                self._repeat(self._keep_tables, self._note_tables_problem), name="tables of the master"
            ),
        ]

    async def stop(self) -> None:
        """Request the tables once more if the master responds, and stop following."""
        try:
            async with asyncio.timeout(FINAL_TIMEOUT_S):
                master = await MasterRequests.connect(self._broker.config)
                try:
                    await self._take_tables(master)
                finally:
                    master.close()
                while self._waiting is not None:
                    await asyncio.sleep(_LAST_BYTES_POLL_S)
                    await self._take_waiting()
        except (*_FOLLOW_ERRORS, TimeoutError) as error:
            _logger.info("the tables are those of the last request: %s", error or "the master did not respond")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._store.forget_received()

    @property
    def behind_bytes(self) -> int | None:
        """Bytes of the master's log that are missing here, as of the last request; None if unknown."""
        end = self.status.master_end
        return None if end is None else max(end - self._store.end_offset, 0)

    def problems(self) -> list[str]:
        """Return why this broker could not replace its master, as sentences; empty if it could."""
        if self.status.problem:
            return [f"the master {self.address} is not followed: {self.status.problem}"]
        return [] if self.status.caught_up else [f"the log has not reached that of the master {self.address} yet"]

    async def _repeat(self, step: Callable[[], Awaitable[None]], note: Callable[[str], None]) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            began = time.monotonic()
            try:
                await step()
            except _FOLLOW_ERRORS as error:
                note(str(error) or type(error).__name__)
            if time.monotonic() - began > MAX_BACKOFF_S:
                backoff_s = FIRST_BACKOFF_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def _note_problem(self, problem: str) -> None:
        if problem != self.status.problem:
            _logger.warning("the master %s is not followed: %s", self.address, problem, extra=fields(peer=self.address))
        self.status.problem = problem

    def _note_tables_problem(self, problem: str) -> None:
        if problem != self.status.tables_problem:
            _logger.warning("the tables of the master are not available: %s", problem, extra=fields(peer=self.address))
        self.status.tables_problem = problem

    # The log

    async def _follow(self) -> None:
        """Follow the master until the connection ends."""
        self._store.forget_received()
        self.status.caught_up = False
        master = await MasterRequests.connect(self._broker.config)
        try:
            await master.check_settings(self._store)
            start = await self._start(master, await master.bounds())
        finally:
            master.close()
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=READ_BYTES)
        try:
            await self._receive(reader, writer, start)
        finally:
            writer.close()

    async def _start(self, master: MasterRequests, bounds: LogBounds) -> int:
        """Return the offset to be reported first. FollowError: the log cannot continue with that of this master."""
        store = self._store
        if store.end_offset == 0:
            if bounds.begin or not self._skips_oldest:
                return bounds.begin
            # RocketMQ's master begins at its last segment if the report is 0.
            record = await master.first_record()
            store.append_raw(0, record)
            if store.end_offset != len(record):
                store.forget_received()
                raise FollowError("the master's response to request 33 is not the first record of its log")
            return len(record)
        end = store.end_offset
        if end > bounds.end:
            raise FollowError(
                f"the log ends at offset {end} and that of the master at {bounds.end}: if the master lost the bytes in"
                " between, promote this broker, or empty its store"
            )
        if end < bounds.begin:
            raise FollowError(
                f"the log ends at offset {end} and that of the master begins at {bounds.begin}: empty the store"
            )
        # The last record is received again, and compared: the protocol has no other proof that both logs are the same.
        return max(store.last_offset, bounds.begin) or end

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: int) -> None:
        config, store, ranges = self._broker.config, self._store, RangeReader()
        loop = asyncio.get_running_loop()
        writer.write(encode_report(start))
        expected, compared_to = start, store.end_offset
        heartbeat_s, housekeeping_s = config.ha_send_heartbeat_interval / 1_000, config.ha_housekeeping_interval / 1_000
        reported, reported_at = start, loop.time()
        received_at = reported_at
        while True:
            data = await _read(reader, max(reported_at + heartbeat_s - loop.time(), 0))
            if data == b"":
                raise FollowError("the master closed the connection")
            yield_at = loop.time() + SLICE_S
            for offset, part in ranges.feed(data or b""):
                self._check_begin(offset, expected)
                self._append(offset, part, compared_to)
                expected += len(part)
                if loop.time() >= yield_at:
                    await asyncio.sleep(0)
                    yield_at = loop.time() + SLICE_S
            now = loop.time()
            if data is not None:
                received_at = now
                self._note_followed(expected)
            elif now - received_at > housekeeping_s:
                raise FollowError(f"nothing received from the master for {now - received_at:.0f} s")
            end = max(min(store.end_offset, expected), start)
            if end > reported or now >= reported_at + heartbeat_s:
                writer.write(encode_report(end))
                reported, reported_at = end, now

    def _check_begin(self, offset: int, expected: int) -> None:
        if offset != expected:
            self._skips_oldest = expected == 0
            raise FollowError(
                f"the master sent its log from offset {offset}, and {expected} was expected"
                + (": continuing with its first record" if self._skips_oldest else "")
            )

    def _append(self, offset: int, part: bytes, compared_to: int) -> None:
        """Append bytes; those that the log had at the beginning of the connection are compared. FollowError."""
        count = min(max(compared_to - offset, 0), len(part))
        if count and self._store.read_bytes(offset, count) != part[:count]:
            raise FollowError(
                f"the log differs from the master's at offset {offset} or soon after it: this is the log of another"
                " broker, so empty the store"
            )
        if part[count:]:
            self._store.append_raw(offset + count, part[count:])

    def _note_followed(self, received: int) -> None:
        status = self.status
        if status.problem:
            _logger.info("following the master %s from offset %d", self.address, received)
            status.problem = ""
        if status.master_end is not None and self._store.end_offset >= status.master_end:
            status.caught_up = True

    # Tables

    async def _keep_tables(self) -> None:
        """Request the end of the master's log and its tables until a request fails."""
        master = await MasterRequests.connect(self._broker.config)
        try:
            next_at = 0.0
            while True:
                if time.monotonic() >= next_at:
                    next_at = time.monotonic() + TABLES_INTERVAL_S
                    await self._take_tables(master)
                self.status.master_end = (await master.bounds()).end
                self.status.tables_problem = ""
                if not self.status.problem:
                    self._note_followed(self._store.end_offset)
                await self._take_waiting()
                await asyncio.sleep(BOUNDS_INTERVAL_S)
        finally:
            master.close()

    async def _take_tables(self, master: MasterRequests) -> None:
        tables = await master.tables()
        self._tables.take_definitions(tables.topics, tables.groups)
        self._waiting = tables
        await self._take_waiting()

    async def _take_waiting(self) -> None:
        """Replace the offsets once the log has, durably, what they refer to."""
        tables, store = self._waiting, self._store
        if tables is None or store.end_offset < tables.end:
            return
        if store.flushed_offset < tables.end:
            await self._flush()
        if store.flushed_offset < tables.end:
            return
        self._waiting = None
        write = self._tables.take_offsets(tables.consumer_offsets, tables.delay_offsets)
        if write is not None:
            await asyncio.get_running_loop().run_in_executor(None, write)
        self.status.tables_at_ms = self._broker.now_ms()


async def _read(reader: asyncio.StreamReader, timeout_s: float) -> bytes | None:
    """Return the next bytes, none at the end of the stream; None after the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            return await reader.read(READ_BYTES)
    except TimeoutError:
        return None
