"""Members of a replicated group: links over their broker ports (decision 67), and the driver of their state machine.

The state machine is in `delaymq.replication`.
"""
