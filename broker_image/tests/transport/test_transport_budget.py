"""Large buffers of all connections share one budget; the oldest are evicted."""

from delaymq.transport.buffer_budget import BufferBudget

MIB = 1 << 20


class Peer:
    def __init__(self, budget: BufferBudget) -> None:
        self.budget = budget
        self.unwritten = 0
        self.reasons: list[str] = []

    def unwritten_bytes(self) -> int:
        return 0 if self.reasons else self.unwritten

    def abort_for_memory(self, why: str) -> None:
        self.reasons.append(why)

    def falls_behind(self, more_bytes: int) -> None:
        self.unwritten += more_bytes
        self.budget.sends(self, more_bytes)


def test_partial_requests_of_many_peers_stay_below_the_budget_and_the_oldest_is_closed() -> None:
    budget = BufferBudget(16 * MIB)
    peers = [Peer(budget) for _ in range(20)]
    for peer in peers:
        budget.receives(peer, MIB)
    assert budget.received_bytes == 16 * MIB
    assert [bool(peer.reasons) for peer in peers] == [True] * 4 + [False] * 16
    assert budget.disconnected == 4
    assert "maxBufferedBytes" in peers[0].reasons[0]


def test_growing_buffer_keeps_its_age() -> None:
    budget = BufferBudget(16 * MIB)
    first, second = Peer(budget), Peer(budget)
    budget.receives(first, MIB)
    budget.receives(second, 8 * MIB)
    budget.receives(first, 9 * MIB)
    assert first.reasons
    assert not second.reasons
    assert budget.received_bytes == 8 * MIB


def test_announced_sizes_are_trusted_only_while_little_memory_is_used() -> None:
    budget = BufferBudget(16 * MIB)
    peer = Peer(budget)
    assert budget.trusts_peers
    budget.receives(peer, 4 * MIB)
    assert not budget.trusts_peers
    budget.receives(peer, 0)
    assert budget.trusts_peers


def test_unsent_responses_count_and_the_first_slow_peer_is_disconnected() -> None:
    budget = BufferBudget(16 * MIB)
    peers = [Peer(budget) for _ in range(5)]
    for peer in peers:
        peer.falls_behind(4 * MIB)
    assert [bool(peer.reasons) for peer in peers] == [True, False, False, False, False]
    assert "unread responses" in peers[0].reasons[0]
    assert budget.unsent_bytes == 16 * MIB


def test_data_read_by_a_slow_peer_is_released() -> None:
    budget = BufferBudget(16 * MIB)
    slow = Peer(budget)
    for _ in range(1_000):
        slow.falls_behind(MIB)
        slow.unwritten = 2 * MIB
    assert not slow.reasons


def test_received_and_unsent_data_share_the_budget_and_the_larger_part_is_evicted() -> None:
    budget = BufferBudget(16 * MIB)
    receiving, reading = Peer(budget), Peer(budget)
    budget.receives(receiving, 6 * MIB)
    reading.falls_behind(11 * MIB)
    assert reading.reasons
    assert not receiving.reasons


def test_closed_or_caught_up_connection_releases_its_share() -> None:
    budget = BufferBudget(16 * MIB)
    ended, quick = Peer(budget), Peer(budget)
    budget.receives(ended, 10 * MIB)
    quick.falls_behind(5 * MIB)
    budget.forget(ended)
    budget.drained(quick)
    assert (budget.received_bytes, budget.unsent_bytes) == (0, 0)
    other = Peer(budget)
    budget.receives(other, 16 * MIB)
    assert not (ended.reasons)
    assert not (quick.reasons)
    assert not (other.reasons)
