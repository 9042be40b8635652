"""Kubernetes, brokers and Spark in memory."""
