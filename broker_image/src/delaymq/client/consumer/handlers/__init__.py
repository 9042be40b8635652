"""Handlers of push consumers and the service that calls them (RocketMQ: ConsumeMessageService).

Here: concurrency, order, timeouts, and retries of failed messages. Not here: pulls and offsets (queues/). Invariant:
no more handlers run at a time than the options allow.
"""
