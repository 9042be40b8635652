"""Reconcilers in a cluster in memory, with the objects that a group of tests starts from."""
