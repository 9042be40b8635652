"""Sends that a compiled kernel stores: random requests, the twin of the kernel, servers with and without it."""
