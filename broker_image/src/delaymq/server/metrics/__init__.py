"""Metrics: collected on the loop's thread, formatted in another. To be imported lazily: loads the Prometheus client."""
