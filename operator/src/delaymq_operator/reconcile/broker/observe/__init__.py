"""Observed and desired state: validation, objects, brokers, late pods, schedulers.

Read-only: nothing here changes an object of the cluster, except Events, or a broker.
"""
