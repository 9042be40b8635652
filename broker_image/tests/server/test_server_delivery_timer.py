"""The timer of deliveries, in virtual time."""

import asyncio
from collections.abc import Callable

import pytest
from delaymq.server.jobs.delivery_timer import BATCH, MAX_SLEEP_MS, DeliveryTimer
from delaymq_testing.virtual_loop import VirtualLoop, run_virtually


class Schedule:
    """Due times, handed over in order; notes when."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.step_ms = 0
        self.pending: list[int] = []
        self.handed_over: list[tuple[int, int]] = []
        self.batches: list[int] = []
        self.failing = 0
        self.on_wakeup_earlier: Callable[[], None] | None = None
        self.clock = DeliveryTimer(self, self.hand_over, self.now_ms)

    def now_ms(self) -> int:
        return self.loop.now_ms() + self.step_ms

    def add(self, *dues_ms: int) -> None:
        earliest = min(self.pending, default=None)
        self.pending = sorted([*self.pending, *dues_ms])
        if self.on_wakeup_earlier is not None and (earliest is None or self.pending[0] < earliest):
            self.on_wakeup_earlier()

    def next_wakeup_ms(self) -> int | None:
        return self.pending[0] if self.pending else None

    def hand_over(self, now_ms: int, budget: int) -> int:
        if self.failing:
            self.failing -= 1
            raise OSError("no space left on device")
        due = [each for each in self.pending if each <= now_ms][:budget]
        self.pending = self.pending[len(due) :]
        self.handed_over += [(each, self.now_ms()) for each in due]
        self.batches.append(len(due))
        return len(due)


def test_each_message_is_delivered_at_its_due_time_and_not_before() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        start_ms = schedule.now_ms()
        dues = [start_ms + after for after in (1, 17, 1_000, 1_001, 59_999, 7_200_000)]
        schedule.add(*dues)
        schedule.clock.start()
        await asyncio.sleep(7_300)
        assert [due for due, _ in schedule.handed_over] == dues
        assert all(0 <= at - due <= 1 for due, at in schedule.handed_over)

    run_virtually(scenario)


def test_overdue_messages_are_delivered_at_start() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        schedule.add(5, 6, 7)
        schedule.clock.start()
        await asyncio.sleep(0.001)
        assert len(schedule.handed_over) == 3

    run_virtually(scenario)


def test_earlier_due_time_wakes_the_timer() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        schedule.clock.start()
        start_ms = schedule.now_ms()
        schedule.add(start_ms + 50_000)
        await asyncio.sleep(0.5)
        schedule.add(start_ms + 600)
        await asyncio.sleep(0.2)
        assert schedule.handed_over == [(start_ms + 600, start_ms + 600)]

    run_virtually(scenario)


def test_many_due_messages_are_delivered_in_batches_with_yields() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        schedule.add(*[1] * (BATCH * 10))
        slices: list[int] = []

        def other() -> None:
            slices.append(len(schedule.handed_over))
            if len(schedule.handed_over) < BATCH * 10:
                loop.call_soon(other)

        schedule.clock.start()
        loop.call_soon(other)
        await asyncio.sleep(0.1)
        assert schedule.batches == [BATCH] * 10
        assert len(set(slices)) >= 10

    run_virtually(scenario)


@pytest.mark.parametrize("step_ms", [3_600_000, 59_000])
def test_clock_jumping_ahead_is_detected_within_a_second(step_ms: int) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        schedule.clock.start()
        schedule.add(schedule.now_ms() + 59_000)
        await asyncio.sleep(0.5)
        schedule.step_ms = step_ms
        await asyncio.sleep(MAX_SLEEP_MS / 1000)
        assert len(schedule.handed_over) == 1

    run_virtually(scenario)


def test_clock_jumping_back_delivers_nothing_early() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        schedule.clock.start()
        due_ms = schedule.now_ms() + 2_000
        schedule.add(due_ms)
        await asyncio.sleep(0.5)
        schedule.step_ms = -10_000
        await asyncio.sleep(30)
        assert [due for due, _ in schedule.handed_over] == [due_ms]
        assert schedule.handed_over[0][1] >= due_ms

    run_virtually(scenario)


def test_timer_sleeps_without_pending_messages() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        schedule.clock.start()
        await asyncio.sleep(3_600)
        assert schedule.clock.wakeups == 1
        schedule.add(schedule.now_ms() + 60_000)
        await asyncio.sleep(60.5)
        assert len(schedule.handed_over) == 1
        assert schedule.clock.wakeups < 70

    run_virtually(scenario)


def test_failure_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        schedule.failing = 3
        schedule.add(1)
        schedule.clock.start()
        await asyncio.sleep(10)
        assert len(schedule.handed_over) == 1

    run_virtually(scenario)
    assert "the delivery failed" in caplog.text


def test_nothing_is_delivered_after_a_stop() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        schedule.clock.start()
        schedule.add(schedule.now_ms() + 100)
        await asyncio.sleep(0.05)
        schedule.clock.stop()
        schedule.add(1)
        await asyncio.sleep(10)
        assert schedule.handed_over == []

    run_virtually(scenario)


@pytest.mark.parametrize(("set_back_s", "held_s"), [(None, 30), (10, 10)])
def test_deliveries_wait_after_the_clock_was_set_forward(
    set_back_s: int | None, held_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        schedule.clock = DeliveryTimer(schedule, schedule.hand_over, schedule.now_ms, lambda: 10_000)
        start_ms = schedule.now_ms()
        schedule.add(start_ms + 5_000, start_ms + 3_600_000, start_ms + 7_200_000)
        schedule.clock.start()
        await asyncio.sleep(6)
        assert len(schedule.handed_over) == 1
        schedule.step_ms = 3_600_000
        await asyncio.sleep(held_s - 1)
        assert len(schedule.handed_over) == 1
        assert "the clock was set forward by 3600.0 s (timerClockStepMs)" in caplog.text
        if set_back_s is not None:
            schedule.step_ms = 0
        await asyncio.sleep(3)
        assert len(schedule.handed_over) == (1 if set_back_s is not None else 2)
        await asyncio.sleep(3_600)
        assert len(schedule.handed_over) == (2 if set_back_s is not None else 3)
        assert schedule.clock.guard.steps == 1

    run_virtually(scenario)


@pytest.mark.parametrize("step_ms", [9_000, -3_600_000])
def test_small_steps_and_steps_back_hold_nothing(step_ms: int) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        schedule = Schedule(loop)
        schedule.clock = DeliveryTimer(schedule, schedule.hand_over, schedule.now_ms, lambda: 10_000)
        start_ms = schedule.now_ms()
        schedule.add(start_ms + 2_000, start_ms + 20_000)
        schedule.clock.start()
        await asyncio.sleep(3)
        schedule.step_ms = step_ms
        await asyncio.sleep(18 - step_ms / 1_000)
        assert [due - start_ms for due, _ in schedule.handed_over] == [2_000, 20_000]
        assert all(0 <= at - due <= MAX_SLEEP_MS + 1 for due, at in schedule.handed_over)
        assert schedule.clock.guard.steps == 0

    run_virtually(scenario)
