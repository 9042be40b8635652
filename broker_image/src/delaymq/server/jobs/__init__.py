"""Background work on the event loop: periodic jobs, the delivery timer, the drain lease, loading of pending topics.

Here: when something runs. Not here: what it does (broker/). Invariant: system calls that may block run in a thread;
everything else runs on the loop in bounded steps.
"""
