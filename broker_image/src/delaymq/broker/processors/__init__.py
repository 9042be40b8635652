"""Request processors: one function for each request code, grouped by subject. `table` maps codes to functions.

Contents: permissions and checks of each request, and its response. Elsewhere: state and rules (the other packages of
broker/), waiting (server/). Invariants: a processor runs on the loop's thread and never blocks. For a request that
waits, takes long or changes a settings file, it returns a description of the rest (requests/results.py). The modules
keep no state between requests.
"""
