"""`delaymq standalone|broker|namesrv`: from flags, environment and file to a running server.

Here: settings with their origins, and the start. Not here: the servers. Invariant: typer and rich are not loaded.
"""
