"""The commands of `delaymq`: one folder or module per noun.

Here: arguments, order of steps, and output. Not here: rows and texts that several commands show (views/), and the
choice of the server (target/). Invariant: no command imports from another noun's module.
"""
