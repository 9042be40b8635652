"""Terminal input and output.

Here: tables, times, JSON lines, prompts, standard input. Not here: data of brokers. Invariant: text from outside
reaches a terminal only without control characters.
"""
