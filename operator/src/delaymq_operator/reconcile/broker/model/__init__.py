"""State of a reconcile pass over a Broker, and memory between passes.

Contains data and the interpretation of pod and claim statuses. Makes no decisions; imports no other subpackage.
"""
