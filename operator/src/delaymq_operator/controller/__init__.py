"""When a resource is reconciled: what watches and lists showed, whom a change wakes, one run of a key at a time.

`cache` holds what was seen last, `event_mapping` maps a change to the keys that it concerns, `controller` runs each
key, `sync` compares the cache with lists, `namespaces` does this for each namespace by itself, and `finalizers`
releases what is deleted where nothing is watched. Nothing here knows kopf: `delaymq_operator.handlers` fills the cache.
"""
