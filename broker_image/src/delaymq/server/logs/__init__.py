"""The log of a process: one line an event, bounded in size and rate, written where nobody waits for its reader."""
