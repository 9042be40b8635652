"""Leader election by a Lease: the holder renews it in time; a replica that loses it makes no more changes and exits.

The election of the client library sleeps indefinitely, fails on a refused connection and never releases a Lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from delaymq_operator.adapters.api_requests import ApiRequests, Request, micro_time
from delaymq_operator.adapters.kinds import KINDS
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

RENEWALS: Final = 3
"""Number of renewals per lease duration."""
RETRY_S: Final = 1.0
GIVE_UP: Final = 2 / 3
"""Part of the lease duration after which a holder without a renewal stops, before another replica can start."""
REPEAT_SENTENCE_S: Final = 300.0
RELEASED_DURATION_S: Final = 1

_logger = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """Another replica may be active: this process has to exit."""


@dataclass(frozen=True)
class LeaseName:
    """The Lease, and the identity under which this replica holds it."""

    namespace: str
    name: str
    holder: str


class Election:
    """Call `acquire`, then `hold` while this replica is active, then `release`. `clock`: monotonic seconds."""

    def __init__(
        self, requests: ApiRequests, lease: LeaseName, *, duration_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests = requests
        self._lease = lease
        self._duration_s = duration_s
        self._clock = clock
        self._object: Manifest | None = None
        self._renewed_s: float | None = None
        self._transitions = 0
        # Last observed Lease of another holder, and when it was first observed: clocks of replicas are not compared.
        self._observed: tuple[object, float] | None = None
        self._said: tuple[str, float] | None = None

    @property
    def active(self) -> bool:
        """Whether this replica certainly holds the Lease."""
        return self._renewed_s is not None and self._clock() < self._renewed_s + self._duration_s * GIVE_UP

    def fence(self) -> str | None:
        """Return why no change is permitted at present, or None."""
        if self.active:
            return None
        return f"this replica does not hold the Lease {self._lease.namespace}/{self._lease.name}"

    async def acquire(self) -> None:
        """Wait until this replica is active, retrying indefinitely and logging the reason."""
        while True:
            try:
                if await self._attempt():
                    _logger.info("active: holding the Lease %s/%s", self._lease.namespace, self._lease.name)
                    return
            except KubeError as error:
                self._log_once(f"waiting for the Lease {self._lease.namespace}/{self._lease.name}: {_advice(error)}")
            await asyncio.sleep(min(2.0, self._duration_s / RENEWALS))

    async def hold(self) -> None:
        """Renew the Lease until it is lost, then raise LeaseLostError."""
        while True:
            await asyncio.sleep(self._duration_s / RENEWALS)
            while not await self._renew():
                if not self.active:
                    message = (
                        f"the Lease {self._lease.namespace}/{self._lease.name} was lost: another replica is taking over"
                    )
                    raise LeaseLostError(message)
                await asyncio.sleep(RETRY_S)

    async def release(self) -> None:
        """Release the Lease, so that the next replica need not wait for its expiry. A failure is harmless."""
        if not self.active or self._object is None:
            return
        self._renewed_s = None
        spec = self._object["spec"] | {"holderIdentity": "", "leaseDurationSeconds": RELEASED_DURATION_S}
        try:
            await self._put(self._object | {"spec": spec})
        except KubeError as error:
            _logger.info("the Lease could not be released, so the next replica waits until it expires: %s", error)

    async def _attempt(self) -> bool:
        asked_s = self._clock()
        found = await self._get()
        if found is None:
            return await self._take(None, asked_s)
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder and holder != self._lease.holder:
            seen = (holder, spec.get("renewTime"), found["metadata"].get("resourceVersion"))
            if self._observed is None or self._observed[0] != seen:
                self._observed = (seen, asked_s)
            stated_s = float(spec.get("leaseDurationSeconds") or self._duration_s)
            if asked_s < self._observed[1] + stated_s:
                self._log_once(f"standby: {holder} is active")
                return False
        return await self._take(found, asked_s)

    async def _take(self, found: Manifest | None, asked_s: float) -> bool:
        now = micro_time()
        spec = dict((found or {}).get("spec") or {})
        self._transitions = int(spec.get("leaseTransitions") or 0)
        if found is not None and spec.get("holderIdentity") != self._lease.holder:
            self._transitions += 1
        spec |= {"acquireTime": now} | self._terms(now)
        metadata = {"name": self._lease.name, "namespace": self._lease.namespace}
        taken: Manifest = {"apiVersion": KINDS["Lease"].api_version, "kind": "Lease", "metadata": metadata}
        try:
            self._object = await self._put((found or taken) | {"spec": spec}, create=found is None)
        except KubeError as error:
            if error.conflict:
                return False  # another replica was faster
            raise
        self._renewed_s = asked_s
        return True

    async def _renew(self) -> bool:
        """Renew the Lease once; return False on failure, in which case it may still be held."""
        asked_s = self._clock()
        try:
            if self._object is None:
                self._object = await self._get()
                spec = (self._object or {}).get("spec") or {}
                if self._object is None or spec.get("holderIdentity") != self._lease.holder:
                    self._renewed_s = None
                    return False
            spec = self._object["spec"] | self._terms(micro_time())
            self._object = await self._put(self._object | {"spec": spec})
        except KubeError as error:
            # Another client may have changed the Lease or acquired it: read it again.
            self._object = None
            self._log_once(f"the Lease could not be renewed: {error}")
            return False
        self._renewed_s = asked_s
        return True

    def _terms(self, now: str) -> Manifest:
        return {
            "holderIdentity": self._lease.holder,
            "leaseDurationSeconds": max(1, round(self._duration_s)),
            "renewTime": now,
            "leaseTransitions": self._transitions,
        }

    async def _get(self) -> Manifest | None:
        path = KINDS["Lease"].path(self._lease.namespace, self._lease.name)
        try:
            found: Manifest = await self._requests.send(Request("get", "Lease", "GET", path))
        except KubeError as error:
            if error.absent:
                return None
            raise
        return found

    async def _put(self, lease: Manifest, *, create: bool = False) -> Manifest:
        path = KINDS["Lease"].path(self._lease.namespace, "" if create else self._lease.name)
        verb, method = ("create", "POST") if create else ("update", "PUT")
        written: Manifest = await self._requests.send(Request(verb, "Lease", method, path, lease))
        return written

    def _log_once(self, sentence: str) -> None:
        """Log each message once, and repeat it if it still applies after a while."""
        now_s = self._clock()
        if self._said is None or self._said[0] != sentence or now_s - self._said[1] >= REPEAT_SENTENCE_S:
            self._said = (sentence, now_s)
            _logger.info("%s", sentence)


def _advice(error: KubeError) -> str:
    if error.forbidden:
        return (
            f"{error.message}; grant the operator's role the verbs get, create and update on leases in that namespace"
        )
    if error.absent:
        return f"{error.message}; check that the namespace exists"
    return error.message
