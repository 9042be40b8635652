"""What the watches see, and when something is reconciled.

kopf is in `watches`, `kopf_settings`, `kopf_storage`, `kopf_runner`: its handlers are a few lines each, they fill the
`cache` and let go of what is deleted. `routing` says who is woken by a change, `controller` reconciles each key, one
run at a time, `sync` compares the cache with lists: what a watch missed is seen at the latest then. `serving` does this
for each namespace by itself, and `stranded` lets go of what is deleted where it cannot.
"""
