"""Sends, from messages to a broker's result.

Here: the requests of sends, batches, and attempts over queues and brokers. Not here: limits on sends in flight and
transactions (producer/). Invariant: every attempt of a send carries the same unique id and body.
"""
