"""Push, lite pull and pull consumers.

Here: the public classes and what they share; their parts are in the subpackages. Invariant: an offset is committed
only after all messages before it have been consumed.
"""
