"""RocketMQ's statistics by topic, group and queue over the last minute, hour and day (request 315).

Contents: a series of counts for each key, their mapping to RocketMQ's names, and put times. Elsewhere: totals and rates
of the whole broker (broker.stats, which owns the only Statistics) and Prometheus metrics (server/metrics).

Invariant: a send or pull costs one dict lookup and a few additions, whatever the number of keys. Nothing iterates over
all keys periodically.
"""

from delaymq.broker.statistics.put_times import PutTimes
from delaymq.broker.statistics.series import DAY, HOUR, MINUTE, Figures, Series
from delaymq.broker.statistics.statistics import Statistics

__all__ = ["DAY", "HOUR", "MINUTE", "Figures", "PutTimes", "Series", "Statistics"]
