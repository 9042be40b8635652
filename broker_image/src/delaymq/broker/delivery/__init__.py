"""The delay half of a broker: what `schedule/` says is due becomes a copy under its real topic, once.

Here: ingress of delayed messages, hand-over, origin marks, the position after a start, delayOffset.json, the retention
pin, figures. Not here: which message is due when (schedule/), the log (store/).

Invariant: a copy in the log and the schedule's position are one fact; no other file has more authority.
"""

from delaymq.broker.delivery.delay_rewrite import DelaySettings, requested_level, strip_own
from delaymq.broker.delivery.delivery import Delivery
from delaymq.broker.delivery.status import DeliveryCounters, LatenessHistogram

__all__ = ["DelaySettings", "Delivery", "DeliveryCounters", "LatenessHistogram", "requested_level", "strip_own"]
