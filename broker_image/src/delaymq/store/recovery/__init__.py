"""Recovery at start: find the end of the log, repair it, and bring queues, index and observers level with it.

Here: the scan of the log, the repair of damage, and the choice of each record's queue offset. Not here: formats of
queues and index. Invariant: the log decides; whatever a repair overwrites is kept in delaymq/aside/ first.
"""
