"""The queues that a group's member owns, and their messages in memory (RocketMQ: ProcessQueue).

Here: which queues are read, their pulls, and the offset that each may commit. Not here: the computation of shares
(rebalance/) and the calls of handlers. Invariant: memory is limited over all queues of a member.
"""
