"""In-memory clusters with reconcilers, and the initial objects of groups of tests."""
