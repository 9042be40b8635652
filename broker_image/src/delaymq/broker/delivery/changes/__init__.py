"""Changes of pending messages on request: cancel, move, deliver now, restart the delay.

A change is one record, a mark, in the log; the body of the message is not stored again. The exception are messages with
a delay level that are moved: RocketMQ's format ties them to the order of a queue, so they are stored again as timed
messages. Everything here runs on the thread that owns the store. In a race with the hand-over, the first record in the
log decides.

Invariant: the answer to a request is what the log says. A message is reported as unknown only if the index of keys is
complete and contains no record of it.
"""
