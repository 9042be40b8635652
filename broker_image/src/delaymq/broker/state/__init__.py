"""State that a broker starts with: its tables, counters and store options.

Built before the store is opened, and never replaced afterwards.
"""
