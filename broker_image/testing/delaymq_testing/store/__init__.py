"""Stores of small files, and the files under them."""
