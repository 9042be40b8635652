"""Usage of one account, and its quotas: delays first, rejections second.

A request that exceeds a rate is served, and its connection is not read until the debt is paid. If the debt is longer
than `maxDelayMs`, requests are rejected with code 2 (SYSTEM_BUSY). Requests whose rejection would cost more than they
do (`PATIENT`) are rejected only beyond a ten times longer debt.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from delaymq.access.accounts import shown
from delaymq.access.quotas import DEFAULT_MAX_DELAY_MS, RATES, Quotas
from delaymq.broker.quotas.buckets import Bucket
from delaymq.broker.quotas.names import COUNTS, LOOP, PULL_BYTES, PULLS, REQUESTS, SEND_BYTES, SENDS
from delaymq.protocol.codes import PULL_CODES, SEND_CODES, RequestCode, ResponseCode
from delaymq.protocol.errors import RequestError
from delaymq.throttled_log import ThrottledLogger

PATIENT: Final = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    }
)
"""Requests that complete earlier work: retries, ends of transactions, offsets, and the membership of clients."""
PATIENCE: Final = 10
"""Their multiple of the maximum delay."""
MIN_PAUSE_S: Final = 0.002
"""A shorter debt does not delay: it is paid with later ones. Timers are not more precise."""
REJECTION_PAUSE_S: Final = 0.05
"""Pause of a connection with several requests in progress, after one is rejected."""
REJECTIONS_PER_S: Final = 5_000
"""Rejections of an account above which its pauses become longer. They take about a tenth of the event loop."""
BUSY: Final = "[QUOTA]system busy, start flow control for a while: "
"""Beginning of remarks, with the words of RocketMQ's flow control."""
_LATER, _EACH, _SIZE = 0, 1, 2
"""Costs of a request: charged when it is known, 1, or the bytes of the body."""
_CHARGED: Final = {
    "sends": ((SEND_BYTES, _SIZE), (SENDS, _EACH), (REQUESTS, _EACH), (LOOP, _LATER)),
    "pulls": ((PULL_BYTES, _LATER), (PULLS, _EACH), (REQUESTS, _EACH), (LOOP, _LATER)),
    "others": ((REQUESTS, _EACH), (LOOP, _LATER)),
}

Charges = tuple[tuple[str, Bucket, int], ...]


class Pausable(Protocol):
    """A client's connection."""

    def pause(self, seconds: float) -> float:
        """Read no requests for this time. Returns the seconds by which this prolongs an earlier pause."""

    def shorten_pause(self, seconds: float) -> float | None:
        """End a pause after this time at the latest. Returns the seconds removed; None if there is no pause."""


class AccountUsage:
    """Usage of one account since the start of the broker, and the buckets of its rates."""

    __slots__ = (
        "_buckets",
        "_clock",
        "_for_others",
        "_for_pulls",
        "_for_sends",
        "_limits",
        "_max_delay_s",
        "_rejections",
        "_throttled",
        "account",
        "counts",
        "delayed_s",
        "delays",
        "loop_s",
        "pull_bytes",
        "pulls",
        "quotas",
        "refused",
        "requests",
        "send_bytes",
        "sends",
    )

    def __init__(self, account: str, throttled: ThrottledLogger, clock: Callable[[], float] = monotonic) -> None:
        self.account = account
        self.quotas: Quotas | None = None
        """Quotas in force, as of the account's last request."""
        self.counts = dict.fromkeys(COUNTS, 0)
        """Present numbers, by quota; of topics and groups, those created by use since the start."""
        self.requests = 0
        """Accepted requests, including sends and pulls."""
        self.sends = 0
        self.send_bytes = 0
        """Bytes of the bodies of accepted sends."""
        self.pulls = 0
        self.pull_bytes = 0
        """Bytes of messages in responses to pulls."""
        self.loop_s = 0.0
        """Time of the event loop that its requests took."""
        self.delays: dict[str, int] = {}
        """Number of requests after which reading was paused, by quota."""
        self.delayed_s: dict[str, float] = {}
        """Time for which reading was paused, added up over connections, by quota."""
        self.refused: dict[str, int] = {}
        """Number of rejected requests by quota."""
        self._throttled = throttled
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}
        self._rejections = Bucket(REJECTIONS_PER_S, clock())
        self._limits: dict[str, int] = {}
        self._max_delay_s = 0.0
        self._for_sends: Charges = ()
        self._for_pulls: Charges = ()
        self._for_others: Charges = ()

    def apply(self, quotas: Quotas | None) -> None:
        """Put quotas into force. Debts remain, and a bucket that is new is full."""
        if quotas == self.quotas:
            self.quotas = quotas
            return
        self.quotas = quotas
        self._limits = {} if quotas is None else dict(quotas.limits())
        delay_ms = None if quotas is None else quotas.max_delay_ms
        self._max_delay_s = (delay_ms or DEFAULT_MAX_DELAY_MS) / 1000
        now = self._clock()
        before, self._buckets = self._buckets, {}
        for quota, value in self._limits.items():
            if quota in RATES:
                rate = value / 100 if quota == LOOP else float(value)
                bucket = before.get(quota) or Bucket(rate, now)
                bucket.set_rate(rate, now)
                self._buckets[quota] = bucket
        self._for_sends, self._for_pulls, self._for_others = (
            tuple((quota, self._buckets[quota], cost) for quota, cost in each if quota in self._buckets)
            for each in _CHARGED.values()
        )

    def take(self, session: Pausable, code: int, size: int) -> None:
        """Count a request with a body of `size` bytes, and delay its connection if a rate is exceeded.

        Raises RequestError 2 if a debt exceeds the maximum delay; the request is not charged then.
        """
        if code in SEND_CODES:
            if self._for_sends:
                self._charge(session, code, size, self._for_sends)
            self.sends += 1
            self.send_bytes += size
        elif code in PULL_CODES:
            if self._for_pulls:
                self._charge(session, code, size, self._for_pulls)
            self.pulls += 1
        elif self._for_others:
            self._charge(session, code, size, self._for_others)
        self.requests += 1

    def has_room(self, requests: int, size: int) -> bool:
        """Return whether this many sends, with bodies of `size` bytes in all, would exceed no rate."""
        if not self._for_sends:
            return True
        now = self._clock()
        amounts = {_LATER: 0, _EACH: requests, _SIZE: size}
        return all(not bucket.debt_s(now) and bucket.has(amounts[cost]) for _, bucket, cost in self._for_sends)

    def sent(self, sends: int, send_bytes: int, others: int) -> None:
        """Count sends, the bytes of their bodies, and other requests, as `take` does, if there was room for them."""
        amounts = {SEND_BYTES: send_bytes, SENDS: sends, REQUESTS: sends + others}
        for quota, bucket, _ in self._for_sends:
            bucket.charge(amounts.get(quota, 0))
        self.sends += sends
        self.send_bytes += send_bytes
        self.requests += sends + others

    def pulled(self, session: Pausable, size: int) -> None:
        """Charge the bytes of the messages in a response to a pull."""
        self.pull_bytes += size
        if PULL_BYTES in self._buckets:
            self._charge_later(session, PULL_BYTES, size)

    def spent(self, session: Pausable, seconds: float) -> None:
        """Charge time of the event loop."""
        self.loop_s += seconds
        if LOOP in self._buckets:
            self._charge_later(session, LOOP, seconds)

    def excess(self, quota: str) -> RequestError | None:
        """Return the rejection of one more of something that is counted, and count it; None if it is permitted."""
        most, used = self._limits.get(quota), self.counts[quota]
        if most is None or used < most:
            return None
        return self._refusal(quota, f"has {used} of at most {most} ({quota}): use fewer, or raise the quota")

    def _charge(self, session: Pausable, code: int, size: int, charges: Charges) -> None:
        now = self._clock()
        longest_s = self._max_delay_s * PATIENCE if code in PATIENT else self._max_delay_s
        for quota, bucket, _ in charges:
            debt_s = bucket.debt_s(now)
            if debt_s > longest_s:
                self._pause_after_rejection(session, quota, now)
                raise self._refusal(
                    quota,
                    f"has used its {quota} ({self._limits[quota]}) for the next {debt_s * 1000:.0f} ms, more than"
                    f" maxDelayMs ({self._max_delay_s * 1000:.0f}): send less, or raise the quota",
                )
        longest, reason = 0.0, ""
        for quota, bucket, cost in charges:
            debt_s = bucket.charge(size if cost == _SIZE else cost)
            if debt_s > longest:
                longest, reason = debt_s, quota
        if longest >= MIN_PAUSE_S:
            self._delay(session, reason, longest)

    def _charge_later(self, session: Pausable, quota: str, amount: float) -> None:
        bucket = self._buckets[quota]
        bucket.debt_s(self._clock())
        debt_s = bucket.charge(amount)
        if debt_s >= MIN_PAUSE_S:
            self._delay(session, quota, debt_s)

    def _pause_after_rejection(self, session: Pausable, quota: str, now: float) -> None:
        """Pause the connection, but only briefly if it has several requests in progress.

        Its further requests wait in the kernel, and must not become too old before they are rejected, too. An account
        that causes too many rejections is paused for longer, because they take time from others.
        """
        self._rejections.debt_s(now)
        pause_s = min(max(self._rejections.charge(1), REJECTION_PAUSE_S), self._max_delay_s)
        removed_s = session.shorten_pause(pause_s)
        if removed_s is None:
            self._pause(session, quota, self._max_delay_s)
        elif removed_s:
            self.delayed_s[quota] = max(self.delayed_s.get(quota, 0.0) - removed_s, 0.0)

    def _delay(self, session: Pausable, quota: str, debt_s: float) -> None:
        self.delays[quota] = self.delays.get(quota, 0) + 1
        self._pause(session, quota, min(debt_s, self._max_delay_s))

    def _pause(self, session: Pausable, quota: str, seconds: float) -> None:
        self.delayed_s[quota] = self.delayed_s.get(quota, 0.0) + session.pause(seconds)

    def _refusal(self, quota: str, text: str) -> RequestError:
        self.refused[quota] = self.refused.get(quota, 0) + 1
        text = f"account {shown(self.account)} {text}"
        # The text has changing numbers, so the quota is the key by which lines are limited.
        self._throttled.warning(f"rejected requests beyond a quota ({quota}): %s", text)
        return RequestError(ResponseCode.SYSTEM_BUSY, BUSY + text)
