"""Message store in RocketMQ 4.9's file format, written by one thread of one process.

This package holds the facade (`message_store`), the commit log, the consume queues, retention, and `reader`, which
reads any such store without writing. Subpackages: `disk` (system calls), `index`, `snapshot`, `recovery`, `backup` and
`tools` (verify, inspect). The store does not interpret messages: the broker registers observers of records for delays,
transactions and groups, and pins that protect records from deletion.
Invariant: the commit log is authoritative. Queues, the index and the states of observers can always be rebuilt from it,
and none of them claims more than the durable part of the log contains. Formats: docs/formats/store.md.

Import from the modules (`message_store`, `model`, `options`, `errors`, `reader`): this file imports nothing, to keep
read-only tools light.
"""
