"""Shared helpers of the chart's tests."""
