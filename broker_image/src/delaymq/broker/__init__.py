"""The broker's domain: topics, groups, offsets, clients, delivery, and a processor for each request code.

Contents: the meaning of every request, in packages by subject, which `broker` combines. Elsewhere: sockets, threads and
waiting. A processor returns a response, or a description of what the server must wait for (results.py). Invariant: all
of it runs on one thread and uses the clock that it is given, so that a test runs a simulated day in milliseconds.
"""
