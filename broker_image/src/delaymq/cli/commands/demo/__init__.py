"""`delaymq demo`: a separate broker, delayed messages, a kill -9 before delivery, and a count of the arrivals.

Here: the broker's process, the scenario, its report and its output. Not here: the broker and the client, which the demo
uses as an application does. Invariants: the demo accesses only its own broker, on free ports of 127.0.0.1 and in a new
folder; the broker's process has ended when the scenario ends, even with an error.
"""
