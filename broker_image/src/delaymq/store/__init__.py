"""The message store: RocketMQ 4.9's files, written by one process, one thread.

Here: the facade (`message_store`), commit log, consume queues, retention, and `reader`, a reader of any such store that
never writes. Rooms: `disk` (system calls), `index`, `snapshot`, `recovery`, `backup`, `tools` (verify, inspect). Not
here: what messages mean to a broker (delays, transactions, groups): that comes in as observers of each record and as
pins against deletion.
Invariant: the commit log is the truth. Queues, index and observers' states can always be rebuilt from it, and nothing
states more than the log holds on disk. Formats: docs/formats/store.md.

Import from the modules (`message_store`, `model`, `options`, `errors`, `reader`): this file imports nothing, so that
tools that only read stay light.
"""
