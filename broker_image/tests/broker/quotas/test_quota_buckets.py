"""Token buckets against exact models, with random schedules."""

import logging
from fractions import Fraction
from random import Random

import pytest
from delaymq.access.quotas import Quotas
from delaymq.broker.quotas.buckets import BURST_S, Bucket
from delaymq.broker.quotas.usage import MIN_PAUSE_S, AccountUsage
from delaymq.protocol.errors import RequestError
from delaymq.throttled_log import ThrottledLogger
from delaymq_testing.broker.harness import FakeSession
from delaymq_testing.repetitions import SEED

_throttled = ThrottledLogger(logging.getLogger(__name__), lambda: 0)
TICKS = 1024
"""Times are multiples of 1/1024 s, which floats represent exactly."""


@pytest.mark.parametrize("number", range(20))
def test_balance_is_that_of_an_exact_model(number: int) -> None:
    random = Random(f"{SEED}/{number}")
    rate = Fraction(random.choice([1, 7, 1000, 10**7]))
    bucket, now, balance = Bucket(float(rate), 0.0), Fraction(0), rate
    for _ in range(500):
        step = Fraction(random.choice([0, 0, 1, 50, 700, 4000]), TICKS)
        now += step
        balance = min(balance + step * rate, rate)
        assert bucket.debt_s(float(now)) == pytest.approx(float(max(-balance, Fraction(0)) / rate), rel=1e-6, abs=1e-6)
        if random.random() < 0.1:
            rate = Fraction(random.choice([1, 7, 1000, 10**7]))
            balance = min(balance, rate)
            bucket.set_rate(float(rate), float(now))
        amount = random.choice([1, 1, 3, int(rate), 3 * int(rate)])
        balance -= amount
        assert bucket.charge(amount) == pytest.approx(float(max(-balance, Fraction(0)) / rate), rel=1e-6, abs=1e-6)


class Client:
    """A client that sends its next request as soon as its connection is read, and notes the outcome."""

    def __init__(self, usage: AccountUsage) -> None:
        self.usage = usage
        self.session = FakeSession()
        self.reads_at = 0.0

    def send(self, now: float, size: int) -> bool:
        self.session.paused_s.clear()
        try:
            self.usage.take(self.session, 310, size)
        except RequestError:
            return False
        finally:
            self.reads_at = max([now, *(now + each for each in self.session.paused_s)])
        return True


@pytest.mark.parametrize("number", range(20))
def test_account_gets_its_rate_whatever_its_clients_do(number: int) -> None:
    """Never more than the quota, a burst, the longest debt and one request; never less while it has work."""
    random = Random(f"{SEED}/{number}")
    rate, most_delay_s = random.choice([2_000, 100_000]), random.choice([0.1, 1.0, 3.0])
    time = [0.0]
    usage = AccountUsage("a", _throttled, lambda: time[0])
    usage.apply(Quotas(send_bytes_per_second=rate, max_delay_ms=int(most_delay_s * 1000)))
    clients = [Client(usage) for _ in range(random.choice([1, 3, 20]))]
    sizes = random.choice([[100], [100, 1_000], [10, rate // 2], [3 * rate]])
    stored, last_s = 0, 30.0
    while time[0] < last_s:
        client = min(clients, key=lambda each: each.reads_at)
        time[0] = max(time[0], client.reads_at) + 0.0001
        size = random.choice(sizes)
        if client.send(time[0], size):
            stored += size
        assert client.reads_at <= time[0] + most_delay_s + 1e-9
        assert stored <= rate * (BURST_S + time[0] + most_delay_s) + max(sizes)
    # With requests of seconds, one of the burst and the last one may be unpaid.
    assert stored >= rate * (last_s - 2 * most_delay_s - MIN_PAUSE_S) - max(sizes)
    assert usage.send_bytes == stored


def test_single_synchronous_client_is_delayed_and_never_refused() -> None:
    time = [0.0]
    usage = AccountUsage("a", _throttled, lambda: time[0])
    usage.apply(Quotas(send_requests_per_second=100))
    client = Client(usage)
    for _ in range(1_100):
        time[0] = max(time[0] + 0.001, client.reads_at)
        assert client.send(time[0], 10)
    assert time[0] == pytest.approx(10.0, abs=0.1)
    assert usage.refused == {}
    assert set(usage.delays) == {"sendRequestsPerSecond"}
    assert 8 < usage.delayed_s["sendRequestsPerSecond"] < 10
