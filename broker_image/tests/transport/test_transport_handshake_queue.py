"""Order of TLS handshakes: shares per network, newest first, eviction of the largest network's oldest."""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from delaymq.message.ids import pack_host
from delaymq.transport.handshake_queue import (
    EXPIRED_AT_ONCE,
    GIVES_WAY_S,
    GIVES_WAY_STUCK_S,
    MAX_HANDSHAKES,
    MAX_PER_NETWORK,
    STUCK_S,
    WAIT_S,
    Handshake,
    HandshakeQueue,
)


@dataclass
class Peer:
    remote_host: bytes


class Row:
    """A row, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.row = HandshakeQueue()
        self.now = 1_000.0

    def come(self, address: str, count: int = 1) -> list[Handshake]:
        peers: list[Any] = [Peer(pack_host(address, 40_000 + number)) for number in range(count)]
        came = [Handshake(peer, b"\x16", self.now) for peer in peers]
        for each in came:
            self.row.wait(each)
        return came

    def begin(self) -> tuple[Handshake, Handshake | None] | None:
        found = self.row.next(self.now)
        if isinstance(found, float):
            return None
        found[0].since = self.now
        return found

    def begin_all(self) -> list[Handshake]:
        begun = []
        while (found := self.begin()) is not None:
            begun.append(found[0])
        return begun


@pytest.fixture
def row() -> Row:
    return Row()


def test_networks_rotate_and_the_newest_of_each_is_first(row: Row) -> None:
    first, second = row.come("10.0.0.1", 2)
    third, fourth = row.come("10.0.0.2", 2)
    assert row.begin_all() == [second, fourth, first, third]
    assert (row.row.waiting, row.row.under_way) == (0, 4)


def test_one_network_leaves_capacity_for_others(row: Row) -> None:
    row.come("10.0.0.1", 1_000)
    assert len(row.begin_all()) == MAX_PER_NETWORK
    (other,) = row.come("10.0.0.2")
    assert row.begin() == (other, None)
    assert row.begin() is None


def test_oldest_handshake_of_the_largest_network_is_evicted_only_after_its_time(row: Row) -> None:
    large = row.come("10.0.0.1", 120)
    row.come("10.0.0.2", 70)
    row.come("10.0.0.3", 66)
    assert len(row.begin_all()) == MAX_HANDSHAKES
    row.now += GIVES_WAY_STUCK_S / 2
    (late,) = row.come("10.0.0.4")
    assert row.row.next(row.now) == GIVES_WAY_STUCK_S / 2
    row.now += GIVES_WAY_STUCK_S / 2
    assert row.begin() == (late, large[-1])
    row.row.ended(large[-1])  # as its task says later
    assert row.row.under_way == MAX_HANDSHAKES
    again = row.come("10.0.0.2", 1)
    assert row.begin() == (again[0], large[-2])


def test_stalled_network_evicts_its_own_handshakes_one_at_a_time(row: Row) -> None:
    old = row.come("10.0.0.1", MAX_PER_NETWORK)
    row.begin_all()
    row.now += GIVES_WAY_STUCK_S
    new = row.come("10.0.0.1", 2)
    assert row.begin() == (new[1], old[-1])
    assert row.row.next(row.now) == pytest.approx(STUCK_S)
    row.now += STUCK_S
    assert row.begin() == (new[0], old[-2])


def test_slow_but_progressing_clients_of_one_network_get_more_time(row: Row) -> None:
    """A thousand that start on one machine: each takes seconds, but one is done and another begins all the time."""
    waiting = row.come("10.0.0.1", MAX_PER_NETWORK + 50)
    under_way = row.begin_all()
    began = row.now
    while row.now + STUCK_S / 2 < began + GIVES_WAY_S:
        row.now += STUCK_S / 2
        row.row.ended(under_way.pop())
        found = row.begin()
        assert found is not None
        assert found[1] is None
        assert row.begin() is None
    row.now = began + GIVES_WAY_S
    found = row.begin()
    assert found is not None
    assert found[1] is under_way[0]
    assert waiting[-1] is under_way[0]


def test_handshake_blocked_by_the_server_is_not_evicted(row: Row) -> None:
    """Its certificate is being made: that is no fault of its peer."""
    row.come("10.0.0.1", MAX_PER_NETWORK)
    for _ in range(MAX_PER_NETWORK):
        row.row.next(row.now)
    row.come("10.0.0.1")
    row.now += 100 * GIVES_WAY_S
    assert row.row.next(row.now) == GIVES_WAY_S


def test_host_with_many_ipv6_addresses_is_one_network(row: Row) -> None:
    for number in range(300):
        row.come(f"2001:db8:1:2::{number:x}")
    assert len(row.begin_all()) == MAX_PER_NETWORK
    row.come("2001:db8:1:3::1")
    assert len(row.begin_all()) == 1


def test_expired_handshakes_are_dropped_in_bounded_numbers(row: Row) -> None:
    came = row.come("10.0.0.1", 20)
    row.now += WAIT_S
    late = row.come("10.0.0.1")
    assert row.row.expired(row.now) == []
    row.now += 0.1
    assert row.row.expired(row.now) == came[:EXPIRED_AT_ONCE]
    assert row.row.expired(row.now) == came[EXPIRED_AT_ONCE:]
    assert row.begin_all() == late
    row.come("10.0.0.2")
    row.now += WAIT_S + 1
    assert len(row.row.expired(row.now)) == 1
    assert (row.row.waiting, row.row.next(row.now)) == (0, GIVES_WAY_S)


def test_client_starts_within_one_rotation_despite_any_number_of_hostile_ones(row: Row) -> None:
    """Peers reconnect whenever one of their handshakes is ended; a handshake that begins takes STUCK_S at most."""
    hostile = [f"10.1.0.{number}" for number in range(20)]
    for address in hostile:
        row.come(address, 500)
    row.begin_all()
    row.now += GIVES_WAY_STUCK_S
    (client,) = row.come("10.2.0.1")
    begun = []
    for _ in range(len(hostile) + 1):
        row.now += STUCK_S
        found = row.begin()
        assert found is not None
        begun.append(found[0])
        assert found[1] is not None
        row.come(f"10.1.0.{found[1].connection.remote_host[3]}")
    assert client in begun


def test_counters_equal_the_actual_entries_after_any_events() -> None:
    chance = random.Random(7)
    row = Row()
    waiting: set[Handshake] = set()
    under_way: set[Handshake] = set()
    for _ in range(30_000):
        what = chance.random()
        row.now += chance.random() * 0.02
        if what < 0.5:
            waiting |= set(row.come(f"10.0.0.{min(int(chance.expovariate(0.5)), 250)}"))
        elif what < 0.9:
            found = row.begin()
            if found is not None:
                waiting.remove(found[0])
                under_way.add(found[0])
                under_way.discard(found[1]) if found[1] is not None else None
        elif what < 0.95 and under_way:
            row.row.ended(under_way.pop())
        else:
            waiting -= set(row.row.expired(row.now))
        assert (row.row.waiting, row.row.under_way) == (len(waiting), len(under_way))
        assert len(under_way) <= MAX_HANDSHAKES
    assert len(waiting) > 100
