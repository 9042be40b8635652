"""Profiles of the benchmark's rows: sampling, flame graphs, and summaries."""
