"""The commands of `delaymq`: a folder or module for each noun.

Here: arguments, order of steps, and what is printed. Not here: rows and texts that several commands show (views/), whom
to ask (target/). Invariant: no command imports another noun's.
"""
