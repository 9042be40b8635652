"""What a message is: properties, names, flags, ids, delay levels, marks, and the record codec of the commit log.

No IO, no clock, no dependency beyond the standard library: brokers, clients, Spark jobs and tools all import this.
Invariant: what `record.encode_record` writes, `record.decode_record` reads back byte for byte, and RocketMQ 4.9 too.
"""
