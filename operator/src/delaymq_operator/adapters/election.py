"""One active replica, by a Lease: who holds it renews it in time, who lost it changes nothing any more and ends.

The library's own election sleeps without an end, dies of a refused connection and never gives a lease back.
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
"""In each duration of the lease."""
RETRY_S: Final = 1.0
GIVE_UP: Final = 2 / 3
"""Without a renewal for this part of the duration the holder stops, before anybody else may begin."""
REPEAT_SENTENCE_S: Final = 300.0
RELEASED_DURATION_S: Final = 1

_logger = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """Another replica may be active from now on: this process has to end."""


@dataclass(frozen=True)
class LeaseName:
    """Which Lease, and by which name this replica holds it."""

    namespace: str
    name: str
    holder: str


class Election:
    """`acquire`, then `hold` as long as this replica is active, then `release`. `clock`: seconds that only grow."""

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
        # What another holder's lease looked like, and since when: its clock is not compared with ours.
        self._observed: tuple[object, float] | None = None
        self._said: tuple[str, float] | None = None

    @property
    def active(self) -> bool:
        """Whether the lease is certainly still ours."""
        return self._renewed_s is not None and self._clock() < self._renewed_s + self._duration_s * GIVE_UP

    def fence(self) -> str | None:
        """Why nothing may be changed now, or None."""
        if self.active:
            return None
        return f"this replica does not hold the Lease {self._lease.namespace}/{self._lease.name}"

    async def acquire(self) -> None:
        """Returns when this replica is active; it waits and tries without end, and says why."""
        while True:
            try:
                if await self._attempt():
                    _logger.info("active: holding the Lease %s/%s", self._lease.namespace, self._lease.name)
                    return
            except KubeError as error:
                self._log_once(f"waiting for the Lease {self._lease.namespace}/{self._lease.name}: {_advice(error)}")
            await asyncio.sleep(min(2.0, self._duration_s / RENEWALS))

    async def hold(self) -> None:
        """Renews the lease until it is lost: LeaseLostError."""
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
        """Gives the lease back, so that the next replica need not wait for its end; failing is harmless."""
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
        """False when it did not work now; the lease may still be ours."""
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
            # Somebody wrote it: read it again, they may have taken it.
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
        """Each sentence once, and again when it still holds after a while."""
        now_s = self._clock()
        if self._said is None or self._said[0] != sentence or now_s - self._said[1] >= REPEAT_SENTENCE_S:
            self._said = (sentence, now_s)
            _logger.info("%s", sentence)


def _advice(error: KubeError) -> str:
    if error.forbidden:
        return f"{error.message}; grant the operator's role get, create and update on leases there"
    if error.absent:
        return f"{error.message}; check that the namespace exists"
    return error.message
