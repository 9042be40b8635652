"""Brokers with accounts, and tenants that share one."""
