"""What RocketMQ counts by topic, group and queue, over the last minute, hour and day (request 315).

Here: a series of counts for each key, and which of them answers to which of RocketMQ's names; how long storing takes.
Not here: totals and rates of the whole broker (broker.stats, which owns the one Statistics) and Prometheus' metrics
(server/metrics).

Invariant: who sends or pulls pays for one look into a dict and a few additions, whatever the number of keys; nothing
runs at intervals over all of them.
"""

from delaymq.broker.statistics.put_times import PutTimes
from delaymq.broker.statistics.series import DAY, HOUR, MINUTE, Figures, Series
from delaymq.broker.statistics.statistics import Statistics

__all__ = ["DAY", "HOUR", "MINUTE", "Figures", "PutTimes", "Series", "Statistics"]
