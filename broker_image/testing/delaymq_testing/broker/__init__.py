"""Brokers without sockets, and what drives them."""
