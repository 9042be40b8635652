"""`delaymq group`: consumer groups, their members and offsets.

Here: groups, requests to one member, resets of offsets. Not here: collecting the data of groups (views/). Invariant: a
command deletes a group, or discards or changes offsets, only after a confirmation or with `--yes`.
"""
