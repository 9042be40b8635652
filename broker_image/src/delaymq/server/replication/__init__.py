"""Links between the members of a replicated group, over their broker ports (decision 67).

The state machine is in `delaymq.replication`. No setting starts a link yet.
"""
