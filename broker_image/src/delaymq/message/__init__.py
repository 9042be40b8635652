"""Messages: properties, names, flags, ids, delay levels, marks, and the record codec of the commit log.

No IO, no clock, and no dependency beyond the standard library: brokers, clients, Spark jobs and tools import this.
Invariant: `record.decode_record` and RocketMQ 4.9 read back exactly what `record.encode_record` writes.
"""
