"""Administration: drains, messages that would be lost with this broker, and runtime facts for RocketMQ's tools.

Contents: state and reports for operators only. Elsewhere: their request codes (processors/). Invariant: the only cost
for sends and pulls is the test of one attribute, whether sends are rejected.
"""
