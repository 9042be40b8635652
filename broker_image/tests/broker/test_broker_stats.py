"""Counters and rates."""

from delaymq.broker.statistics.counters import Stats

DAY_MS = 86_400_000


def test_rates_cover_three_windows() -> None:
    stats = Stats(0)
    for second in range(1, 121):
        for _ in range(10 if second > 110 else 1):
            stats.put("Orders", 100)
        stats.sample(second * 1_000)
    assert stats.rates(120_000)["put"] == (10.0, 2.5, 210 / 120)
    assert stats.rates(120_000)["get_total"] == (0.0, 0.0, 0.0)


def test_rates_stay_right_when_the_clock_is_set_back() -> None:
    stats = Stats(10_000_000)
    for second in range(600):
        stats.put("Orders", 100)
        stats.sample(10_000_000 + second * 1_000)
    stats.sample(6_000_000)
    for second in range(1, 61):
        stats.put("Orders", 100)
        stats.sample(6_000_000 + second * 1_000)
        assert stats.rates(6_000_000 + second * 1_000)["put"] == (1.0, 1.0, 1.0)


def test_samples_are_kept_for_the_longest_window_only() -> None:
    stats = Stats(0)
    for second in range(1, 3_000):
        stats.sample(second * 1_000)
    assert len(stats._samples) == 601
    assert stats.rates(2_999_000)["put"] == (0.0, 0.0, 0.0)


def test_totals_of_yesterday_and_today_roll_over_at_midnight() -> None:
    stats = Stats(DAY_MS - 1_000)
    stats.put("Orders", 1)
    stats.sample(DAY_MS)
    stats.put("Orders", 1)
    assert (stats.put_yesterday, stats.put_today, stats.put_messages) == (0, 1, 2)
    stats.sample(2 * DAY_MS)
    assert (stats.put_yesterday, stats.put_today, stats.put_messages) == (1, 2, 2)


def test_put_time_distribution_covers_the_last_full_minute() -> None:
    stats = Stats(0)
    for _ in range(10):
        stats.put("Orders", 1)
    for took_s in (0.001, 0.0099, 0.010, 0.2, 12.5):
        stats.put_times.slow(took_s)
    stats.sample(59_999)
    assert stats.put_times.distribution().startswith("[<=0ms]:0 [0~10ms]:0 ")
    stats.sample(60_000)
    assert stats.put_times.distribution() == (
        "[<=0ms]:5 [0~10ms]:2 [10~50ms]:1 [50~100ms]:0 [100~200ms]:0 [200~500ms]:1 [500ms~1s]:0 "
        "[1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:1 "
    )
    stats.put("Orders", 1)
    stats.sample(120_000)
    assert stats.put_times.distribution().startswith("[<=0ms]:1 [0~10ms]:0 ")
    assert stats.put_times.longest_ms == 12_500


def test_messages_are_counted_by_topic() -> None:
    stats = Stats(0)
    stats.put("A", 10)
    stats.put("A", 20)
    stats.put("B", 5)
    assert dict(stats.stored) == {"A": 2, "B": 1}
    assert stats.put_bytes == 35
