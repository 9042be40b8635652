"""Request processors: one function for each request code, grouped by subject. `table` maps codes to functions."""
