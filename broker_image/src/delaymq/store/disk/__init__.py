"""Access to the file system: system calls, whole-file replacement, the lock, and copies of what repairs overwrite.

Here: every call by which a running broker touches its files. Not here: what the bytes mean; `reader` and `read_only`,
which never write to a store. Invariant: `files.Files` makes the calls, so that tests can put a recording or failing
twin in its place.
"""
