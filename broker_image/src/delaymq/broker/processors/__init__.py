"""One function a request code, by subject; table.py holds the one table of them."""
