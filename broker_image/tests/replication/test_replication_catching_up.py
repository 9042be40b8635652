"""A master limits what it sends to members that are not in the set, and nothing else."""

from __future__ import annotations

from delaymq.replication import Settings
from delaymq.replication.effects import SendLog
from delaymq.replication.events import Appended, Received
from delaymq.replication.messages import Ack
from delaymq_testing.replication.driver import Driver, connect, master

SETTINGS = Settings(batch_bytes=1_000, window_bytes=1 << 20)
END = 200_000


def received(driver: Driver, name: str) -> int:
    """Number of bytes that a member was sent, which acknowledges all of them."""
    sent = [effect for effect in driver.effects if isinstance(effect, SendLog) and effect.member == name]
    driver.effects.clear()
    if sent:
        driver.give(Received(name, Ack(2, 1, sent[-1].end, sent[-1].end, sent[-1].start)))
    return sum(effect.end - effect.start for effect in sent)


def test_member_that_catches_up_receives_the_limit_and_no_more() -> None:
    driver = master(settings=SETTINGS)
    driver.member.limit_catch_up(20_000)
    driver.give(Appended(END))
    connect(driver, "b", 100)
    total = received(driver, "b")
    for _ in range(50):
        driver.wait(100)
        total += received(driver, "b")
    assert 0.9 * 5 * 20_000 <= total <= 1.1 * 5 * 20_000


def test_two_members_share_the_limit() -> None:
    driver = master(settings=SETTINGS)
    driver.member.limit_catch_up(20_000)
    driver.give(Appended(END))
    for name in "bc":
        connect(driver, name, 100)
    total = 0
    for _ in range(50):
        driver.wait(100)
        sent = [effect for effect in driver.effects if isinstance(effect, SendLog)]
        total += sum(effect.end - effect.start for effect in sent)
        driver.effects.clear()
        for effect in sent:
            driver.give(Received(effect.member, Ack(2, 1, effect.end, effect.end, effect.start)))
    assert total <= 1.1 * 5 * 20_000


def test_member_in_the_set_is_not_limited() -> None:
    driver = master("b", settings=SETTINGS)
    driver.member.limit_catch_up(20_000)
    connect(driver, "b", 100)
    driver.effects.clear()
    driver.give(Appended(END))
    assert received(driver, "b") + received(driver, "b") == END - 100


def test_members_receive_everything_without_a_limit() -> None:
    driver = master(settings=SETTINGS)
    driver.give(Appended(END))
    driver.effects.clear()
    connect(driver, "b", 100)
    assert received(driver, "b") + received(driver, "b") == END - 100
