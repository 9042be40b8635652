"""Handlers for the broker as a whole: probes, metrics, delays, drain, remaining messages, decommissioning."""

import asyncio
import importlib
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from delaymq import __version__
from delaymq.api_types.base import LeaseMs, Problem
from delaymq.api_types.broker import (
    About,
    Alive,
    Decommissioned,
    Drain,
    NotAlive,
    Remaining,
    Transactions,
    UnconsumedRow,
)
from delaymq.api_types.delay import Delay, Paused
from delaymq.broker.admin import remaining
from delaymq.broker.admin.drain import DrainMode
from delaymq.config import to_settings
from delaymq.server.api import replication
from delaymq.server.api.routing import ApiError
from delaymq.server.http.responses import decode_json, json_response, readiness
from delaymq.server.log_reader import clean_text
from delaymq.server.metrics.due_counts import DueCountsByTopic
from delaymq.server.metrics.gather import gather

if TYPE_CHECKING:
    from delaymq.broker.delivery import Delivery
    from delaymq.server.broker_server import BrokerServer

MAX_PAUSES_SHOWN: Final = 1_000
SCAN_SLICE_S: Final = 0.005
"""Time slice of a scan of all groups and topics on the event loop."""


class DrainRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Body of POST /api/v1/drain; `DrainChange` in the description."""

    mode: DrainMode
    lease_ms: LeaseMs | None = None


class BrokerHttp:
    """Handlers for one broker."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server
        self._due_counts = DueCountsByTopic()
        self._scraping = asyncio.Lock()
        """One scrape at a time, so that repeated requests use at most one core."""

    async def alive(self, request: web.Request) -> Alive | web.Response:
        """/livez: any response proves that the event loop runs; 503 in a state that only a restart ends."""
        failure = self._server.broker.store.failure
        if failure is None:
            return Alive(alive=True)
        error = Problem(code="store_failed", message=str(failure))
        return json_response(NotAlive(alive=False, error=error), 503)

    async def ready(self, request: web.Request) -> web.Response:
        """/readyz: return whether the broker is ready."""
        return readiness(self._server.not_ready())

    async def metrics(self, request: web.Request) -> web.Response:
        """/metrics: return the metrics in Prometheus' text format."""
        loop = asyncio.get_running_loop()
        # Loaded by the first scrape, in a thread, because the import would block the loop for too long.
        module = await loop.run_in_executor(None, importlib.import_module, "delaymq.server.metrics.exposition")
        async with self._scraping:
            gathered = await gather(self._server, self._due_counts)
            await loop.run_in_executor(None, gathered.sample_system)
            text = await loop.run_in_executor(None, module.Snapshot(gathered).text)
        return web.Response(body=text, headers={"Content-Type": module.CONTENT_TYPE})

    async def delay(self, request: web.Request) -> Delay:
        """/api/v1/delay: return the state of the schedule."""
        return self._delay()

    def _delay(self) -> Delay:
        delivery = self._server.broker.delivery
        return msgspec.structs.replace(
            msgspec.convert(delivery.status(), Delay),
            pauses=tuple(islice(_pauses(delivery), MAX_PAUSES_SHOWN)),
            pauses_truncated=len(delivery.pauses) > MAX_PAUSES_SHOWN,
        )

    async def about(self, request: web.Request) -> About:
        """/api/v1/broker: return identity, state, settings and delays in one response."""
        server, broker = self._server, self._server.broker
        not_ready = server.not_ready()
        return About(
            as_of_ms=broker.now_ms(),
            version=__version__,
            broker_name=broker.config.broker_name,
            cluster_name=broker.config.broker_cluster_name,
            store_id=broker.store.store_id,
            boot_id=server.boot_id,
            started_at_ms=broker.stats.boot_ms,
            ready=not not_ready,
            not_ready=tuple(not_ready),
            address=broker.address,
            drain=self._drain(),
            decommissioned=server.decommissioned,
            settings=to_settings(broker.config),
            delay=self._delay(),
            transactions=self._transactions(),
            replication=None if server.replica is None else replication.state(server, server.replica),
        )

    def _transactions(self) -> Transactions:
        totals = self._server.broker.transactions.totals()
        return Transactions(
            pending=totals.pending,
            committed=totals.committed,
            rolled_back=totals.rolled_back,
            checked=totals.checked,
            given_up=totals.given_up,
        )

    async def drain(self, request: web.Request) -> Drain:
        """GET /api/v1/drain: return the drain state."""
        return self._drain()

    async def set_drain(self, request: web.Request) -> Drain:
        """POST /api/v1/drain: keep producers away until the lease ends, or end draining."""
        try:
            wanted = decode_json(await request.read(), DrainRequest)
            if wanted.mode is not DrainMode.NONE and wanted.lease_ms is None:
                raise msgspec.ValidationError(f"{wanted.mode} requires leaseMs, after which writes are accepted again")
        except msgspec.DecodeError as error:
            example = '{"mode": "withdraw", "leaseMs": 30000}'
            sentence = f"{error}: send {example}; modes are none, withdraw, refuse"
            raise ApiError(400, "bad_request", sentence) from None
        self._server.draining.set(wanted.mode, wanted.lease_ms or 0)
        return self._drain()

    def _drain(self) -> Drain:
        broker = self._server.broker
        return Drain(
            mode=broker.drain.mode.value,
            since_ms=broker.drain.since_ms,
            lease_ends_ms=broker.drain.lease_ends_ms,
            last_send_ms=broker.stats.last_send_ms,
            sends=broker.stats.sends,
        )

    async def remaining(self, request: web.Request) -> Remaining:
        """/api/v1/remaining: return what consumers would lose without this broker and its store."""
        broker = self._server.broker
        now_ms = broker.now_ms()
        pending = self._pending()
        found = remaining.UnconsumedTotals()
        yield_at = time.monotonic() + SCAN_SLICE_S
        for row in remaining.scan(broker, now_ms):
            found.add(row)
            if time.monotonic() >= yield_at:
                await asyncio.sleep(0)
                yield_at = time.monotonic() + SCAN_SLICE_S
        return Remaining(
            as_of_ms=now_ms,
            # Messages delivered or sent back during the scan are counted in one of the two.
            pending_delays=max(pending, self._pending()),
            unconsumed=tuple(
                UnconsumedRow(group=row.group, topic=row.topic, messages=row.messages) for row in found.largest()
            ),
            unconsumed_messages=found.messages,
            active_groups=tuple(sorted(found.groups)[: remaining.MAX_SHOWN]),
        )

    async def decommission(self, request: web.Request) -> Decommissioned:
        """POST /api/v1/decommission: reject writes; the next shutdown unregisters the broker. Idempotent."""
        self._server.decommission()
        return Decommissioned(decommissioned=True, pending_delays=self._pending())

    def _pending(self) -> int:
        """Return the number of messages that only this broker can deliver: delayed and timed ones, and open
        transactions.
        """
        broker = self._server.broker
        return broker.delivery.pending_total() + broker.transactions.totals().pending


def _pauses(delivery: "Delivery") -> Iterator[Paused]:
    """Yield the pauses that the log states, in the order of their beginning."""
    partitions = delivery.timeline.partitions
    for (topic, group), pause in delivery.pauses:
        if not topic:
            pending = partitions.messages
        else:
            pending = (partitions.totals_of_group(topic, group) if group else partitions.totals(topic)).messages
        yield Paused(
            topic=clean_text(topic) or None,
            group=clean_text(group) or None,
            since_ms=pause.since_ms,
            by=clean_text(pause.account),
            pending=pending,
        )
