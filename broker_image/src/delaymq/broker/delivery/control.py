"""Delivery policy of one store: spreads or drops overdue messages, or pauses deliveries after a restore.

The policy is stored in delaymq/delivery.json, so that a restart does not deliver messages that an administrator wants
to inspect first. It also applies to overdue messages of a paused topic or group when they are resumed.

A pause on request is a fact in the log instead (`changes/pauses`). That of a restored or cloned store is not, because
the log of such a store is to remain that of its source until someone decides otherwise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from delaymq.broker.delivery.changes.appending import Stated
from delaymq.broker.delivery.changes.changes import BROKER, Requester
from delaymq.broker.delivery.pause_facts import ALL
from delaymq.broker.delivery.settings.overdue import OverdueTreatments, Requests
from delaymq.schedule.timeline import PacedTimeline, Timeline
from delaymq.schedule.timeline.inspection import due_count

if TYPE_CHECKING:
    from delaymq.broker.delivery.changes.pauses import Pauses
    from delaymq.broker.delivery.hand_over import HandOver
    from delaymq.broker.delivery.reader import DeliveryStore
    from delaymq.broker.delivery.settings.promises import Promises
    from delaymq.schedule.timeline.rates import Smoothing

FILE_NAME: Final = "delivery.json"
MAX_SPREAD_MS: Final = 30 * 86_400_000

_logger = logging.getLogger(__name__)


class DeliveryMode(StrEnum):
    """Modes of the policy."""

    PAUSED = "paused"
    """All messages, until someone resumes deliveries."""
    SPREAD = "spread"
    """Overdue messages are delivered evenly over a period."""
    DROP = "drop"
    """Overdue messages are not delivered, but settled by marks."""


@dataclass(frozen=True, kw_only=True)
class DeliveryPolicy:
    """Delivery policy as stored."""

    mode: DeliveryMode
    since_ms: int
    up_to_ms: int | None = None
    """Messages due at or before this time are overdue ones; None: those that are overdue when a broker starts."""
    over_ms: int = 0
    """Duration of a spread."""
    until_ms: int | None = None
    """End of a spread that has started."""


def encode_policy(policy: DeliveryPolicy) -> bytes:
    """Return the content of delivery.json."""
    content = {
        "mode": policy.mode,
        "sinceMs": policy.since_ms,
        "upToMs": policy.up_to_ms,
        "overMs": policy.over_ms,
        "untilMs": policy.until_ms,
    }
    return json.dumps(content).encode() + b"\n"


def parse_policy(data: bytes) -> DeliveryPolicy:
    """Return the policy in the file. ValueError."""
    try:
        content = json.loads(data)
        up_to_ms, until_ms = content["upToMs"], content["untilMs"]
        return DeliveryPolicy(
            mode=DeliveryMode(content["mode"]),
            since_ms=int(content["sinceMs"]),
            up_to_ms=None if up_to_ms is None else int(up_to_ms),
            over_ms=min(max(int(content["overMs"]), 0), MAX_SPREAD_MS),
            until_ms=None if until_ms is None else int(until_ms),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a part is missing or has another type: {error}") from error


def decode_policy(data: bytes) -> DeliveryPolicy:
    """Return the policy in the file. An unreadable file pauses deliveries, so that nothing is delivered by mistake."""
    try:
        return parse_policy(data)
    except ValueError as error:
        _logger.error(
            "%s cannot be read (%s): deliveries are paused: resume them with `delaymq delay resume`", FILE_NAME, error
        )
        return DeliveryPolicy(mode=DeliveryMode.PAUSED, since_ms=0)


class DeliveryControl:
    """Stores and changes the policy of deliveries. The file is always written before `hand_over` is updated."""

    def __init__(
        self,
        store: DeliveryStore,
        timeline: Timeline,
        hand_over: HandOver,
        pauses: Pauses,
        promises: Promises,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._timeline = timeline
        self._hand_over = hand_over
        self._pauses = pauses
        self._now_ms = now_ms
        self.policy: DeliveryPolicy | None = None
        """Current policy; None if messages are delivered when they are due."""
        self.on_policy: Callable[[], None] = lambda: None
        """Called when the stored policy has changed."""
        self._is_written = True
        """Whether the file states the policy of the broker that this one follows."""
        requests = Requests(
            lambda: self.policy is not None or self.is_paused,
            lambda topic: _end_of(pauses.pause(topic, "", BROKER)),
            self.pause_locally,
            hand_over.stop,
        )
        self.treatments = OverdueTreatments(store, timeline, promises, requests, now_ms)
        """Treatment of messages that came due while the broker was not running."""
        pauses.on_change = self._pause_changed

    def load(self) -> None:
        """Apply the stored policy; start a spread that has not started yet."""
        self._release()
        policy = self._store.own_files.load(FILE_NAME, decode_policy)
        if policy is not None:
            self._take(policy)
        if self.is_paused:
            _logger.warning("deliveries are paused: resume them with `delaymq delay resume`")

    def replicate(self, policy: DeliveryPolicy | None) -> None:
        """Adopt the policy of the broker that this one follows. It is stored by `write`, and applied by `load`."""
        self.policy, self._is_written = policy, False

    def write(self) -> None:
        """Store what the broker that this one follows states. OSError."""
        if not self._is_written:
            self._save()
            self._is_written = True
        self.treatments.write()

    def begin_treatments(self, stopped_ms: int) -> None:
        """Treat messages that came due since the log's last record was stored as the settings of their topics require.

        To be called once, when the store accepts records.
        """
        try:
            self.treatments.begin(stopped_ms)
        except OSError as error:
            self._hand_over.stop(error)

    def _pause_changed(self, topic: str, group: str, is_paused: bool) -> None:
        if (topic, group) != ALL:
            if not is_paused:
                self._spread_resumed()
            if not group:
                self.treatments.pause_changed(topic, is_paused=is_paused)
        elif is_paused:
            self.treatments.end_all()

    @property
    def is_paused(self) -> bool:
        """Whether all deliveries are paused, by the log or by the stored policy."""
        return self._pauses.of_all is not None or (self.policy is not None and self.policy.mode is DeliveryMode.PAUSED)

    def pause(self, requester: Requester = BROKER) -> int | None:
        """Pause deliveries; return the end of the mark in the log. StoreError: nothing changed."""
        return None if self.is_paused else _end_of(self._pauses.pause(*ALL, requester))

    def pause_locally(self) -> None:
        """Pause deliveries of this store alone, without a statement in the log. OSError: nothing changed."""
        if self.policy is None or self.policy.mode is not DeliveryMode.PAUSED:
            self._take(DeliveryPolicy(mode=DeliveryMode.PAUSED, since_ms=self._now_ms()), save=True)

    # The following return the end of a mark in the log, if one was written. StoreError: deliveries remain paused.

    def resume(self, requester: Requester = BROKER) -> int | None:
        """Deliver each message when it is due, and overdue messages immediately. OSError, StoreError."""
        self._remove()
        self._release()
        self.treatments.end_all()
        return _end_of(self._pauses.resume(*ALL, requester))

    def spread(self, over_ms: int, requester: Requester = BROKER) -> int | None:
        """Deliver the messages that are overdue now evenly over this time in ms, by due time. OSError, StoreError."""
        now_ms = self._now_ms()
        self._take(DeliveryPolicy(mode=DeliveryMode.SPREAD, since_ms=now_ms, over_ms=over_ms), save=True)
        self.treatments.end_all()
        return _end_of(self._pauses.resume(*ALL, requester))

    def drop(self, up_to_ms: int, requester: Requester = BROKER) -> int | None:
        """Settle messages due at or before `up_to_ms` by marks instead of delivering them. OSError, StoreError."""
        now_ms = self._now_ms()
        policy = DeliveryPolicy(mode=DeliveryMode.DROP, since_ms=now_ms, up_to_ms=min(up_to_ms, now_ms))
        self._take(policy, save=True)
        self.treatments.end_all()
        return _end_of(self._pauses.resume(*ALL, requester))

    def smooth(self, limits: Mapping[str, Smoothing | None]) -> None:
        """Limit the rates at which messages of topics are delivered; None removes a limit."""
        for topic, smoothing in limits.items():
            self._timeline.queues.set_rate(topic, smoothing)
        try:
            self._timeline.sort_out_paced()
        except OSError as error:
            self._hand_over.stop(error)

    def overdue(self, now_ms: int) -> int:
        """Return the number of pending messages due at `now_ms`, except those that wait for a retry."""
        return self._hand_over.spread_left + due_count(self._timeline, now_ms)

    def review(self) -> None:
        """End a completed policy, and completed treatments; called after hand-overs."""
        if self.policy is not None and self.policy.mode is not DeliveryMode.PAUSED:
            self._finish_if_done(self.policy)
        if self.treatments.open:
            self.treatments.review()

    def _finish_if_done(self, policy: DeliveryPolicy) -> None:
        up_to_ms = policy.up_to_ms or 0
        if policy.mode is DeliveryMode.SPREAD:
            over = self._hand_over.is_spread_over
        else:
            over = all(due_ms > up_to_ms for due_ms, *_ in self._hand_over.retries.entries())
        # Overdue messages may be paused, or wait because of the rate of their topic.
        if over and not self._timeline.queues.has_due(up_to_ms):
            self._release()
            try:
                self._remove()
            except OSError as error:
                # The next start applies the policy again, finds no overdue messages, and repeats the removal.
                _logger.error("%s could not be removed: %s", FILE_NAME, error)

    def as_json(self, now_ms: int) -> dict[str, object] | None:
        """Return `held` of /api/v1/delay; None without a policy."""
        policy, of_all = self.policy, self._pauses.of_all
        if of_all is not None:
            policy = DeliveryPolicy(mode=DeliveryMode.PAUSED, since_ms=of_all.since_ms)
        if policy is None:
            return None
        return {
            "mode": policy.mode.value,
            "sinceMs": policy.since_ms,
            "overdue": self.overdue(now_ms),
            "upToMs": policy.up_to_ms,
            "untilMs": policy.until_ms,
            "left": self._hand_over.spread_left if policy.mode is DeliveryMode.SPREAD else None,
        }

    def _take(self, policy: DeliveryPolicy, *, save: bool = False) -> None:
        now_ms = self._now_ms()
        begun = policy
        if policy.mode is DeliveryMode.SPREAD:
            # Each restart spreads the rest of the messages that were overdue at the first start.
            begun = DeliveryPolicy(
                mode=policy.mode,
                since_ms=policy.since_ms,
                up_to_ms=now_ms if policy.up_to_ms is None else policy.up_to_ms,
                over_ms=policy.over_ms,
                until_ms=now_ms + policy.over_ms if policy.until_ms is None else policy.until_ms,
            )
        elif policy.mode is DeliveryMode.DROP and policy.up_to_ms is None:
            begun = DeliveryPolicy(mode=policy.mode, since_ms=policy.since_ms, up_to_ms=now_ms)
        if save or begun != policy:
            self._store.own_files.save(FILE_NAME, encode_policy(begun))
        self._release()
        self.policy = begun
        self.on_policy()
        if begun.mode is DeliveryMode.PAUSED:
            self._hand_over.paused = True
        elif begun.mode is DeliveryMode.DROP:
            self._hand_over.drop_up_to_ms = begun.up_to_ms
            self._timeline.queues.unlimited_up_to_ms = begun.up_to_ms or 0
        else:
            up_to_ms = begun.up_to_ms or 0
            try:
                spread = PacedTimeline(self._timeline, up_to_ms, now_ms, begun.until_ms or 0)
            except OSError as error:
                self._hand_over.stop(error)
                return
            self._hand_over.begin_spread(spread, up_to_ms)

    def _spread_resumed(self) -> None:
        """Spread overdue messages whose pause has ended over the rest of the time, or after it, over a new period."""
        policy, spread = self.policy, self._hand_over.spread
        if policy is None or spread is None or self._hand_over.is_spread_over:
            return
        now_ms = self._now_ms()
        until_ms = policy.until_ms or 0
        if until_ms <= now_ms:
            until_ms = now_ms + policy.over_ms
            self.policy = replace(policy, until_ms=until_ms)
            try:
                self._save()
            except OSError as error:
                _logger.error("%s cannot be written, so a restart delivers what is left: %s", FILE_NAME, error)
            self.on_policy()
        spread.restart(now_ms, until_ms)

    def _release(self) -> None:
        self.policy = None
        self._hand_over.paused = False
        self._hand_over.drop_up_to_ms = None
        self._timeline.queues.unlimited_up_to_ms = 0
        self._hand_over.end_spread()

    def _remove(self) -> None:
        self._store.own_files.remove(FILE_NAME)
        self.on_policy()

    def _save(self) -> None:
        if self.policy is None:
            self._store.own_files.remove(FILE_NAME)
        else:
            self._store.own_files.save(FILE_NAME, encode_policy(self.policy))


def _end_of(stated: Stated | None) -> int | None:
    return None if stated is None else stated.end
