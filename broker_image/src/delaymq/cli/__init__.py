"""The command `delaymq`.

Here: arguments in, text or JSON out, exit codes. Not here: anything that another program could want to call.
Servers (`servers/`) start without typer and rich, which cost a quarter of a second and memory that stays.

Exit codes: 0 done, 1 not done (the reason is on stderr), 2 wrong arguments or configuration, 3 nobody is there or
answers, 130 interrupted. `store verify` has its own: 0 sound, 1 damage, 2 not a store.
"""
