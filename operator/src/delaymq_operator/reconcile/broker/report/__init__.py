"""What a pass reports: the status, conditions, problems and Events.

Changes no object of the cluster but the status of the Broker and Events.
"""
