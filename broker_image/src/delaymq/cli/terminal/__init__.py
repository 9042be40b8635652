"""Input and output of a terminal.

Here: tables, times, JSON lines, prompts, standard input. Not here: what brokers know. Invariant: text of others
reaches a terminal only without control characters.
"""
