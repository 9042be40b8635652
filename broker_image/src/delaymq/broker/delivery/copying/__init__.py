"""Copies of due messages, which the hand-over appends."""
