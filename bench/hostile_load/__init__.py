"""The hostile client and the honest one of bench/hostile.py."""
