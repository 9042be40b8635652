"""kopf's handlers and its execution: the only package that imports kopf.

`watches` registers the handlers, a few lines each: they fill the cache of `delaymq_operator.controller` and release
deleted resources. `runner` runs kopf within the operator's event loop, configured by `settings`, with annotations
read by `storage`.
"""
