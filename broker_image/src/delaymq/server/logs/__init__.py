"""Log of a process: one line per event, limited in size and rate, written without blocking on its reader."""
