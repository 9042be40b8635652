"""Assembly of the operator: its parts are started and stopped in order.

Until it holds the Lease, a replica only responds to probes. Then it lists everything, reconciles, and lets kopf
watch. It holds the Lease only while it serves a namespace.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from delaymq_operator.adapters.api_requests import ApiRequests, Request
from delaymq_operator.adapters.broker_admin import HttpBrokerAdmin
from delaymq_operator.adapters.credentials import Credentials, own_namespace
from delaymq_operator.adapters.election import Election, LeaseName
from delaymq_operator.adapters.kinds import OWN_KINDS
from delaymq_operator.adapters.kube import ApiKube
from delaymq_operator.adapters.kube_events import EventRecorder
from delaymq_operator.controller.cache import WatchCache
from delaymq_operator.controller.controller import RUN_TIMEOUT_S, Controller
from delaymq_operator.controller.event_mapping import keys_to_enqueue
from delaymq_operator.controller.finalizers import StrandedFinalizers
from delaymq_operator.controller.namespaces import NamespaceServer
from delaymq_operator.controller.sync import CacheSync, Lost, Scope
from delaymq_operator.handlers.runner import KopfRunner
from delaymq_operator.health import LoopLag, serve_health
from delaymq_operator.metrics import CONTENT_TYPE, OperatorMetrics, StateCollector
from delaymq_operator.reconcile.context import Key, Outcome, ReconcileContext, Waiting
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator.settings import OperatorSettings, SettingsError, reconcile_settings

STOP_GRACE_S: Final = 5.0
"""Grace period for reconciliations in progress when the process is stopped; each of their requests is atomic."""
EVENTS_GRACE_S: Final = 1.0
GIVEN_UP_S: Final = 5.0
"""Time between releasing the Lease because nothing could be served and the next attempt: another replica may
succeed.
"""
MAX_LAG_S: Final = 5.0
STUCK_S: Final = RUN_TIMEOUT_S + 60
DEFAULT_NAMESPACE: Final = "default"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reconcilers:
    """Reconcile functions by kind."""

    reconcile: Mapping[str, Callable[[Key, ReconcileContext], Awaitable[Outcome]]]
    release: Mapping[str, Callable[[Key, ReconcileContext], Awaitable[Waiting | None]]] = field(default_factory=dict)
    """Work before the finalizer of a deleted object is removed; such kinds get a finalizer."""


class OperatorRuntime:
    """A replica. `run` returns after SIGTERM or SIGINT, and raises any other cause of its end."""

    def __init__(self, settings: OperatorSettings, reconcilers: Reconcilers) -> None:
        self._settings = settings
        self._reconcilers = reconcilers
        namespace = settings.namespace or own_namespace() or DEFAULT_NAMESPACE
        self._identity = settings.pod_name or socket.gethostname()
        credentials = Credentials(settings.kubeconfig, settings.kube_context)
        credentials.load()  # fails immediately if there are none
        self._metrics = OperatorMetrics()
        self._requests = ApiRequests(
            credentials.load,
            threads=settings.api_threads,
            timeout_s=settings.api_timeout_s,
            observe=self._requested,
        )
        # A separate thread, since a renewal must not wait behind lists.
        self._lease_requests = ApiRequests(
            credentials.load, threads=1, timeout_s=settings.lease_duration_s / 5, observe=self._requested
        )
        self._election: Election | None = None
        if settings.lease:
            name = LeaseName(settings.lease_namespace or namespace, settings.lease_name, self._identity)
            self._election = Election(self._lease_requests, name, duration_s=settings.lease_duration_s)
            self._requests.fence = self._election.fence
        self._events = EventRecorder(self._requests, instance=self._identity, clock=time.monotonic)
        self._cache = WatchCache(self._changed, namespaces=settings.namespaces)
        self._admin = HttpBrokerAdmin()
        self._ctx = ReconcileContext(
            kube=ApiKube(self._requests, seen=self._cache.put, events=self._events),
            cache=self._cache,
            admin=self._admin,
            settings=reconcile_settings(settings, settings.namespace or own_namespace()),
            clock=lambda: time.time_ns() // 1_000_000,
            count_analytics=self._metrics.analysed,
        )
        self._controller = Controller(
            self._reconcile,
            self._metrics,
            workers=settings.workers,
            resync_s=settings.resync_interval_s,
            known=lambda: self._keys(None),
        )
        self._serving = self._make_serving(credentials)
        self._standing_by = False
        self._lag = LoopLag()
        self._stop = asyncio.Event()
        self._metrics.registry.register(StateCollector(self, self._cache))

    def _make_serving(self, credentials: Credentials) -> NamespaceServer:
        settings = self._settings
        releases = {kind: self._releaser(release) for kind, release in self._reconcilers.release.items()}

        def sync(lost: Lost) -> CacheSync:
            return CacheSync(self._requests, self._cache, interval_s=settings.resync_interval_s, lost=lost)

        def watches(scope: Scope) -> KopfRunner:
            return KopfRunner(
                credentials,
                scope,
                request_timeout_s=settings.api_timeout_s,
                cache=self._cache,
                controller=self._controller,
                releases=releases,
                listed=self._serving.sync.suspect,
                own_signals=self._own_signals,
            )

        return NamespaceServer(
            settings.namespaces,
            sync=sync,
            cache=self._cache,
            controller=self._controller,
            watches=watches,
            keys=self._keys,
            left=StrandedFinalizers(self._requests, self._ctx.kube, self._controller, releases),
        )

    async def run(self) -> None:
        """Run until a signal. SettingsError if the HTTP port is in use, else the error of the part that failed."""
        settings = self._settings
        self._own_signals()
        lag = asyncio.create_task(self._lag.run(), name="loop lag")
        try:
            health = await serve_health(
                settings.http_host,
                settings.http_port,
                alive=self.not_alive,
                ready=self.not_ready,
                metrics=self._metrics.text,
                content_type=CONTENT_TYPE,
            )
        except OSError as error:
            raise SettingsError(f"cannot listen on --http-port {settings.http_port}: {error.strerror}") from error
        _logger.info("serving probes and metrics on port %d", health.port)
        leading = asyncio.create_task(self._lead(), name="leading")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait({leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                _logger.info("stopping")
        finally:
            # A replica that lost the Lease must stop immediately.
            await self._controller.stop(STOP_GRACE_S if self.active else 0)
            await self._events.close(EVENTS_GRACE_S)
            await health.stop()
            for task in (leading, stopping, lag):
                task.cancel()
            outcomes = await asyncio.gather(leading, stopping, lag, return_exceptions=True)
            await self._admin.close()
            if self._election is not None:
                await self._election.release()
            self._requests.close()
            self._lease_requests.close()
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    def _own_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    async def _lead(self) -> None:
        while True:
            await self._serving.readable()
            if self._election is None:
                await self._serving.run(self._filled)
            else:
                self._standing_by = True
                await self._election.acquire()
                self._standing_by = False
                await self._serve_while_active(self._election)
                await self._election.release()
            await asyncio.sleep(GIVEN_UP_S)

    async def _serve_while_active(self, election: Election) -> None:
        """Serve until nothing can be served. LeaseLostError."""
        parts = [
            asyncio.create_task(election.hold(), name="lease"),
            asyncio.create_task(self._serving.run(self._filled), name="serving"),
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        _logger.warning("no namespace can be served: releasing the Lease")

    def _filled(self) -> None:
        # All objects created so far are permanent: repeated garbage collection of them would block the event loop.
        gc.collect()
        gc.freeze()
        self._controller.start()

    # State.

    @property
    def active(self) -> bool:
        """Whether this replica is the active one."""
        return self._election is None or self._election.active

    @property
    def queue_depth(self) -> int:
        """The number of keys waiting for a worker."""
        return self._controller.queue_depth

    @property
    def loop_lag_s(self) -> float:
        """The maximum lag of the event loop in the last minute."""
        return self._lag.largest_s

    @property
    def events_dropped(self) -> int:
        """The number of dropped Events."""
        return self._events.dropped

    @property
    def served(self) -> Mapping[str, bool]:
        """Whether each watched namespace is served; `*` stands for all. Empty in a standby replica."""
        if self._standing_by:
            return {}
        known = dict.fromkeys(self._serving.obstacles, False) | dict.fromkeys(self._serving.served, True)
        return {scope or "*": is_served for scope, is_served in known.items()}

    def not_alive(self) -> list[str]:
        """Return why the process should be restarted."""
        problems = []
        # A past stall does not count: during a longer one, the probe itself times out.
        if self._lag.stalled_s > MAX_LAG_S:
            problems.append(f"the event loop has been blocked for {self._lag.stalled_s:.1f} s")
        if self._controller.longest_run_s() > STUCK_S:
            problems.append(f"a reconciliation has been running for {self._controller.longest_run_s():.0f} s")
        dead = self._serving.sync.dead_watches()
        problems += [f"the watch of {kind} objects keeps missing changes" for kind in dead]
        return problems

    def not_ready(self) -> list[str]:
        """Return why it cannot do its work, which includes standby."""
        if self._standing_by or self._serving.served:
            return []
        return [str(one) for one in self._serving.obstacles.values()] or ["the cluster has not been read yet"]

    # Callbacks of the parts.

    def _requested(self, request: Request, status: int) -> None:
        self._metrics.requested(request, status)
        if status == 0 or status >= 500:
            self._serving.sync.suspect()

    def _changed(self, kind: str, before: Manifest | None, after: Manifest | None) -> None:
        for key in keys_to_enqueue(kind, before, after, self._cache):
            if self._serving.serves(key.namespace):
                self._controller.enqueue(key)

    async def _reconcile(self, key: Key) -> Outcome:
        if not self._serving.serves(key.namespace):
            return Outcome()
        outcome = await self._reconcilers.reconcile[key.kind](key, self._ctx)
        if self._cache.get(*key) is None:
            self._ctx.memory.forget_absent(lambda known: self._cache.get(*known) is not None)
        return outcome

    def _releaser(
        self, release: Callable[[Key, ReconcileContext], Awaitable[Waiting | None]]
    ) -> Callable[[Key], Awaitable[Waiting | None]]:
        async def release_one(key: Key) -> Waiting | None:
            return await release(key, self._ctx)

        return release_one

    def _keys(self, scope: Scope) -> Iterator[Key]:
        for kind in OWN_KINDS:
            for found in self._cache.all(kind, scope):
                yield Key(kind, found["metadata"]["namespace"], found["metadata"]["name"])
