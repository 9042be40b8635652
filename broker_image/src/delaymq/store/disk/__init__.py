"""Access to the file system: system calls, whole-file replacement, the lock, and copies of what repairs overwrite.

This package contains every call by which a running broker accesses its files. It does not interpret their content.
`reader` and `read_only`, which never write to a store, are elsewhere. Invariant: `files.Files` makes the calls, so that
tests can replace it by a class that records calls or fails.
"""
