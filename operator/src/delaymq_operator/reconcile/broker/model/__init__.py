"""What one pass over a Broker knows, and what is remembered between passes.

Data, and what the status of a pod or a claim means. Decides nothing; imports no other room.
"""
