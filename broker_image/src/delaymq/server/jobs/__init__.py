"""Background jobs on the event loop: periodic jobs, delivery timer, drain lease, loading of pending topics.

Here: the scheduling of work. Not here: the work itself (broker/). Invariant: blocking system calls run in a thread;
everything else runs on the loop in bounded steps.
"""
