"""The command `delaymq`.

Here: argument parsing, output as text or JSON, and exit codes. Not here: functions that another program might call.
Servers (`servers/`) start without typer and rich, which would add a quarter of a second and permanent memory use.

Exit codes: 0 success, 1 failure (the reason is on stderr), 2 invalid arguments or configuration, 3 no connection or no
response, 130 interrupted. `store verify` has its own codes: 0 sound, 1 damaged, 2 not a store.
"""
