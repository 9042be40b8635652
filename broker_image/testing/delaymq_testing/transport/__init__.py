"""Connections over loopback and in memory."""
