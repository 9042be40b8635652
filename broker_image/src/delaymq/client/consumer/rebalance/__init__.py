"""Rebalance: the share of each member in a topic's queues (RocketMQ: RebalanceService).

Here: the allocation strategies, the service that applies them, and queue locks. Not here: reading queues. Invariant:
members that see the same lists of queues and members agree without a coordinator.
"""
