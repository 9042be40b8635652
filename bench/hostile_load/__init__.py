"""The hostile client and the honest one of bench/hostile.py, and the tenants of accounts with quotas."""
