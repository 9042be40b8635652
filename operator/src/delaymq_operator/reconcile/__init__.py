"""From what the cluster and the brokers say to what is done next. No kopf, no Kubernetes client, no sockets here.

Level-based: every decision follows from what is seen now, so that the operator may die at any instant. Waiting is an
Outcome with a time to look again, never a sleep.
"""
