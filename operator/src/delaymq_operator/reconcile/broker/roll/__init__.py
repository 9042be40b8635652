"""Takes brokers out of service: drains, restarts one at a time, trials, scale-in.

Each step is decided anew from what is seen. What cannot be taken back follows a fresh read from the API server.
"""
