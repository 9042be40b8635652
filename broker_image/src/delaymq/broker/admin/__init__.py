"""Administration: drains, what consumers would miss without this broker, and runtime facts for RocketMQ's tools.

Here: state and reports that only operators ask for. Not here: their request codes (processors/). Invariant: no
send or pull pays for it but with the test of one attribute, whether producers are held off.
"""
