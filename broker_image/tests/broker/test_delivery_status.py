"""The status of deliveries, and the lateness of messages."""

from __future__ import annotations

from delaymq.broker.delivery.status import LatenessHistogram
from delaymq_testing.broker.delivery_harness import START_MS, Bench


def test_status_has_the_documented_shape() -> None:
    bench = Bench("1s 5s")
    bench.send("a", 1)
    bench.send("b", 2)
    bench.now_ms += 1_040
    bench.hand_over()
    assert bench.delivery.status() == {
        "asOfMs": bench.now_ms,
        "levels": [
            {
                "level": 1,
                "delayMs": 1_000,
                "inTable": True,
                "offset": 1,
                "maxOffset": 1,
                "pending": 0,
                "settledAbove": 0,
                "nextDueMs": None,
                "lateness": {"p50Ms": 40, "p99Ms": 40, "maxMs": 40},
            },
            {
                "level": 2,
                "delayMs": 5_000,
                "inTable": True,
                "offset": 0,
                "maxOffset": 1,
                "pending": 1,
                "settledAbove": 0,
                "nextDueMs": START_MS + 5_000,
                "lateness": {"p50Ms": 0, "p99Ms": 0, "maxMs": 0},
            },
        ],
        "timed": {
            "pending": 0,
            "pendingBytes": 0,
            "nextDueMs": None,
            "delivered": 0,
            "lateness": {"p50Ms": 0, "p99Ms": 0, "maxMs": 0},
            "index": {"runs": 0, "fileBytes": 0, "mergingEntries": 0},
            "carried": {"messages": 0, "bytes": 0, "backlog": 0},
        },
        "corrected": [],
        "held": None,
    }
    assert bench.delivery.clock_skew_ms() == 0
    bench.now_ms -= 5_000
    assert bench.delivery.clock_skew_ms() == 5_000


def test_status_counts_timed_messages_apart_from_the_levels() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    for number in range(40):
        bench.send_timed(f"t{number}", START_MS + 2_000 + 100 * number)
    bench.now_ms += 2_130
    while bench.hand_over():
        pass
    bench.now_ms += 10
    status = bench.delivery.status()
    timed = status["timed"]
    assert isinstance(timed, dict)
    assert [level["pending"] for level in status["levels"]] == [0]  # type: ignore[attr-defined]
    assert (timed["pending"], timed["delivered"], timed["nextDueMs"]) == (38, 2, START_MS + 2_200)
    assert timed["lateness"] == {"p50Ms": 31, "p99Ms": 130, "maxMs": 130}
    assert timed["pendingBytes"] == bench.delivery.timeline.partitions.bytes > 38 * 100
    assert timed["index"]["runs"] == len(bench.delivery.timeline.runs) > 0


def test_lateness_percentiles_are_accurate() -> None:
    histogram = LatenessHistogram()
    values = [(number * 7919) % 100_003 for number in range(10_000)]
    for value in values:
        histogram.add(value)
    values.sort()
    for fraction in (0.1, 0.5, 0.99, 1.0):
        truth = values[max(int(fraction * len(values)) - 1, 0)]
        assert truth <= histogram.percentile_ms(fraction) <= truth * 1.126 + 1
    assert histogram.max_ms == values[-1]
    assert histogram.count == 10_000
    histogram.add(1 << 60)
    histogram.add(-5)
    assert histogram.percentile_ms(1.0) > 1 << 39


def test_histogram_buckets_are_contiguous() -> None:
    for lateness_ms in [*range(5_000), 2**20 - 1, 2**20, 2**30 + 12345]:
        histogram = LatenessHistogram()
        histogram.add(lateness_ms)
        bucket = list(histogram.counts).index(1)
        assert histogram.highest_ms(bucket) >= lateness_ms
        assert bucket == 0 or histogram.highest_ms(bucket - 1) < lateness_ms
