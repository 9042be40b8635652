"""Delivery of delayed messages: a message that `schedule/` reports as due becomes a copy in its real topic, once.

Contents: ingress of delayed messages, hand-over, origin marks, positions after a start, delayOffset.json, the retention
pin, statistics. Elsewhere: the due order (schedule/) and the log (store/).

Invariant: the copies in the log are the position of the schedule; no other file takes precedence over them.
"""

from delaymq.broker.delivery.delay_rewrite import DelaySettings, requested_level, strip_own
from delaymq.broker.delivery.delivery import Delivery
from delaymq.broker.delivery.status import DeliveryCounters, LatenessHistogram

__all__ = ["DelaySettings", "Delivery", "DeliveryCounters", "LatenessHistogram", "requested_level", "strip_own"]
