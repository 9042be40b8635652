"""`delaymq standalone|broker|namesrv`: start a server with settings from flags, environment and file.

Here: settings with their origins, and startup. Not here: the servers. Invariant: typer and rich are not loaded.
"""
