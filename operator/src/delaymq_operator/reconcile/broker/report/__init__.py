"""Reports of a pass: status, conditions, problems and Events.

Changes no object of the cluster except the Broker's status and Events.
"""
