"""The metrics: gathered on the loop's thread, written in another. Load it late: it brings the Prometheus library."""
