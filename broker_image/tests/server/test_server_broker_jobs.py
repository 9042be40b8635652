"""The broker's jobs never block the loop for long."""

from types import SimpleNamespace

import pytest
from delaymq.server import broker_jobs
from delaymq.server.jobs.background import Job


class SlowStore:
    """A store with many new queues, whose files take 1 ms each."""

    allocation_task = snapshot_task = None

    def __init__(self, clock: SimpleNamespace, queues: int) -> None:
        self.clock = clock
        self.left = queues

    def write_behind(self, budget_files: int = 256) -> bool:
        written = min(budget_files, self.left)
        self.left -= written
        self.clock.now_s += written * 0.001
        return self.left > 0


def write_behind_job(store: SlowStore) -> Job:
    delivery = SimpleNamespace(save_task=None)
    broker = SimpleNamespace(store=store, delivery=delivery, config=SimpleNamespace(read_only=False))
    jobs = broker_jobs.BrokerJobs(broker, None, None).jobs()  # type: ignore[arg-type]
    return next(job for job in jobs if job.name == "write behind")


def test_new_queues_are_written_in_short_time_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(broker_jobs, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    store = SlowStore(clock, queues=1_000)
    job = write_behind_job(store)
    assert job.interval_ms() == broker_jobs.WRITE_BEHIND_INTERVAL_MS
    slices = 0
    while store.left:
        began_s = clock.now_s
        job.run()
        assert clock.now_s - began_s < 0.015
        assert not store.left or job.interval_ms() == broker_jobs.WRITE_BEHIND_BUSY_INTERVAL_MS
        slices += 1
    assert slices > 10
    job.run()
    assert job.interval_ms() == broker_jobs.WRITE_BEHIND_INTERVAL_MS
