"""Strangers replay a live broker's registration: its routes stay at its address."""

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
from delaymq_testing.namesrv_world import BrokerPeer, World
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

ADDRESS = "10.0.0.1:10911"
STEPS = FUZZ_INPUTS // 2
A_ROUND = 500
HOSTS = ("10.0.0.9", "10.6.6.6", "10.6.6.7")
"""The broker's own, and two of strangers."""
THEIRS = "10.6.6.6:10911"
NAMES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"name": "theirs"},
    {"broker_id": 7},
    {"address": THEIRS},
    {"name": "theirs", "address": THEIRS},
)

pytestmark = pytest.mark.timeout(120 + FUZZ_INPUTS // 100)


class Honest:
    """A broker that registers in time, occasionally over another connection."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.broker = world.broker("b", address=ADDRESS, host=HOSTS[0])
        self.period_ms = chance.choice((30_000, 60_000))
        for _ in range(2):
            self.register()
            world.now_ms += self.period_ms  # from here on its period is known
        self.register()
        self.half_open: list[BrokerPeer] = []

    def register(self) -> None:
        answer = self.broker.register("T")
        assert answer.code == 0, answer
        self.due_ms = self.world.now_ms + self.period_ms

    def connect_again(self) -> None:
        """The connection before may end only later; what strangers do meanwhile is the test's."""
        if self.chance.randrange(2):
            self.half_open.append(self.broker)
            self.broker = self.world.broker("b", address=ADDRESS, host=self.chance.choice((HOSTS[0], "10.0.0.8")))
        else:
            self.broker.disconnect()
        self.due_ms = self.world.now_ms + self.chance.choice((100, 2_000))

    def step(self) -> None:
        if self.world.now_ms >= self.due_ms:
            self.register()
        elif not self.chance.randrange(40):
            self.connect_again()
        if self.half_open and not self.chance.randrange(20):
            self.half_open.pop().disconnect()


def strangers(world: World, chance: random.Random) -> Iterator[str]:
    """One action after the other."""
    peers: list[BrokerPeer] = []
    while True:
        if len(peers) < 12 and not chance.randrange(3):
            names = {"name": "b", "address": ADDRESS} | chance.choice(NAMES)
            peers.append(world.broker(**names, host=chance.choice(HOSTS[1:])))
        if not peers:
            continue
        peer = chance.choice(peers)
        action = chance.randrange(8)
        if action < 4:
            yield f"103 {peer.register('T').code}"
        elif action < 6:
            yield f"104 {peer.unregister().code}"
        elif action == 6:
            known = world.server.routes.live.get(peer.address)
            body = known.data_version.encode() if known is not None else b"{}"
            yield f"322 {peer.ask(322, peer.names(), body).code}"
        else:
            peers.remove(peer)
            peer.disconnect()
            yield "closed"


def test_strangers_neither_remove_a_live_broker_nor_move_its_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    done: set[str] = set()
    for number in range(0, STEPS, A_ROUND):
        chance = random.Random(f"{SEED} strangers {number}")
        world = World()
        honest = Honest(world, chance)
        others = strangers(world, chance)
        for step in range(A_ROUND):
            done.add(next(others))
            world.now_ms += chance.choice((0, 0, 50, 500, 1_000, 1_500))
            honest.step()
            world.server.expire()
            group = world.server.routes.groups.get("b")
            assert group is not None, f"round {number}, step {step} of DELAYMQ_SEED={SEED}"
            assert group.addresses.get(0) == ADDRESS, f"round {number}, step {step} of DELAYMQ_SEED={SEED}"
            assert "b" in world.server.routes.topics["T"]
    assert FUZZ_INPUTS < 20_000 or done == {"103 0", "103 1", "104 0", "104 1", "322 0", "closed"}
