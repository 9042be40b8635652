"""kopf's handlers, and how kopf is run: the only room that knows kopf.

`watches` registers the handlers, a few lines each: they fill the cache of `delaymq_operator.controller` and release
what is deleted. `runner` runs kopf within the operator's event loop, by `settings`, with annotations read by `storage`.
"""
