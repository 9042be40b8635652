"""Events about DelayMQ's resources: written in the background; repeated Events are counted, excess Events dropped."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import uuid4

from delaymq_operator.adapters.api_requests import MERGE_PATCH, ApiRequests, Request, micro_time
from delaymq_operator.adapters.kinds import KINDS
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import EventType, Manifest

MAX_NOTE_BYTES: Final = 1_024
"""Maximum size accepted by the API server."""
MAX_REASON_CHARS: Final = 128
MAX_REMEMBERED: Final = 1_000
"""Maximum number of Events whose repetitions are counted; the oldest are forgotten, and a repetition is then a new
Event.
"""
MAX_WRITING: Final = 100
"""Maximum number of Events waiting to be written, so that they do not accumulate while the API server is
unreachable.
"""
BURST: Final = 25
REFILL_S: Final = 30.0
"""Token bucket per object: a burst of new Events, then one per REFILL_S seconds."""
REPEAT_S: Final = 60.0
"""Minimum interval between updates of an Event's count."""
CONTROLLER: Final = "delaymq.io/operator"

_logger = logging.getLogger(__name__)


class _EventKey(NamedTuple):
    uid: str
    type: str
    reason: str
    note: str


@dataclass
class _WrittenEvent:
    namespace: str
    name: str
    count: int = 1
    written_s: float = 0.0


@dataclass
class _Allowance:
    left: float
    as_of_s: float


class EventRecorder:
    """Writes Events in the background. `clock` returns monotonic seconds, `instance` is the pod name."""

    def __init__(self, requests: ApiRequests, *, instance: str, clock: Callable[[], float]) -> None:
        self._requests = requests
        self._instance = instance[:MAX_REASON_CHARS] or "delaymq-operator"
        self._clock = clock
        self._said: OrderedDict[_EventKey, _WrittenEvent] = OrderedDict()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()
        self._writing: set[asyncio.Task[None]] = set()
        self.dropped = 0
        """Number of Events dropped because there were too many."""

    def event(self, about: Manifest, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        """Emit an Event. Requires a running loop; never raises, whatever the API server responds."""
        uid = str(about["metadata"].get("uid") or about["metadata"]["name"])
        same = _EventKey(uid, type, reason[:MAX_REASON_CHARS], _note(message))
        said = self._said.get(same)
        if said is None:
            if not self._allowed(uid):
                self.dropped += 1
                return
            namespace = about["metadata"].get("namespace") or "default"
            said = _WrittenEvent(namespace, f"{about['metadata']['name']}.{uuid4().hex[:16]}", written_s=self._clock())
            self._said[same] = said
            if len(self._said) > MAX_REMEMBERED:
                self._said.popitem(last=False)
            self._start(self._add(about, same, said))
            return
        self._said.move_to_end(same)
        said.count += 1
        if self._clock() - said.written_s >= REPEAT_S:
            said.written_s = self._clock()
            self._start(self._count(about, same, said))

    async def close(self, timeout_s: float) -> None:
        """Wait briefly for Events being written."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=timeout_s)
        for task in self._writing:
            task.cancel()

    def _allowed(self, uid: str) -> bool:
        now_s = self._clock()
        allowance = self._allowances.setdefault(uid, _Allowance(BURST, now_s))
        allowance.left = min(BURST, allowance.left + (now_s - allowance.as_of_s) / REFILL_S)
        allowance.as_of_s = now_s
        self._allowances.move_to_end(uid)
        if len(self._allowances) > MAX_REMEMBERED:
            self._allowances.popitem(last=False)
        if allowance.left < 1 or len(self._writing) >= MAX_WRITING:
            return False
        allowance.left -= 1
        return True

    def _start(self, writing: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(writing, name="event")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _add(self, about: Manifest, same: _EventKey, said: _WrittenEvent) -> None:
        metadata = about["metadata"]
        event: Manifest = {
            "apiVersion": KINDS["Event"].api_version,
            "kind": "Event",
            "metadata": {"name": said.name, "namespace": said.namespace},
            "eventTime": micro_time(),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "type": same.type,
            "reason": same.reason,
            "note": same.note,
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "namespace": metadata.get("namespace", ""),
                "name": metadata["name"],
                "uid": metadata.get("uid", ""),
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
        }
        path = KINDS["Event"].path(said.namespace)
        await self._write(Request("create", "Event", "POST", path, event), same)

    async def _count(self, about: Manifest, same: _EventKey, said: _WrittenEvent) -> None:
        count = said.count
        series = {"series": {"count": count, "lastObservedTime": micro_time()}}
        path = KINDS["Event"].path(said.namespace, said.name)
        request = Request("patch", "Event", "PATCH", path, series, MERGE_PATCH)
        if not await self._write(request, same, absent_is_fine=True):
            # The API server keeps Events for an hour only.
            said.name = f"{about['metadata']['name']}.{uuid4().hex[:16]}"
            await self._add(about, same, said)

    async def _write(self, request: Request, same: _EventKey, *, absent_is_fine: bool = False) -> bool:
        try:
            await self._requests.send(request)
        except KubeError as error:
            if error.absent and absent_is_fine:
                return False
            _logger.warning("Event %s could not be written: %s", same.reason, error)
        return True


def _note(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= MAX_NOTE_BYTES:
        return message
    return encoded[: MAX_NOTE_BYTES - len("…".encode())].decode(errors="ignore") + "…"
