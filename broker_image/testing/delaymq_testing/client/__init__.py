"""Peers of the client's tests."""
