"""Timed messages: due times that clients request, their records in the timer topic, and the recovery of their index."""
