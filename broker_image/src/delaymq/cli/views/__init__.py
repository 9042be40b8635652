"""What several commands show: topics, groups and messages, as all brokers together have them.

Here: collecting it from brokers and turning it into rows and text. Not here: options and exit codes. Invariant: nothing
here changes anything at a broker.
"""
