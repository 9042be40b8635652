"""Taking brokers out of service: drains, restarts one at a time, trials, scale-in.

Each step is decided from the observed state. Irreversible actions follow a fresh read from the API server.
"""
