"""Comparison of DelayMQ with NATS JetStream."""
