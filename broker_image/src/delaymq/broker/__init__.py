"""The broker's domain: topics, groups, offsets, clients, delivery, and a processor for each request code.

Here: everything that a request means, in rooms by subject, which `broker` puts together. Not here: sockets, threads,
waiting; a processor returns an answer, or what the server must wait for (results.py). Invariant: all of it runs on one
thread and takes its time from the clock that it is given, so that a test plays a day in milliseconds.
"""
