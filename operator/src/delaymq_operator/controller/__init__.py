"""Scheduling of reconciliations: observed objects, the resources that a change wakes, and sequential runs per key.

`cache` contains the last observed objects, `event_mapping` maps a change to the affected keys, `controller` runs each
key, `sync` compares the cache with lists, `namespaces` does this for each namespace separately, and `finalizers`
releases deleted resources in namespaces that are not watched. Nothing here imports kopf: `delaymq_operator.handlers`
fills the cache.
"""
