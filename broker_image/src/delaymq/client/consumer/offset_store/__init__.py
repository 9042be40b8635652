"""Stores of consumer offsets (RocketMQ: OffsetStore).

Here: at brokers (clustering), in a file (broadcasting), and with seeks (lite pull). Not here: which offset may be
committed (queues/). Invariant: an offset that could not be saved is saved later.
"""
