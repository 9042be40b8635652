"""Views that several commands share: topics, groups and messages across all brokers.

Here: collecting data from brokers and formatting it as rows and text. Not here: options and exit codes. Invariant:
nothing here changes a broker's state.
"""
