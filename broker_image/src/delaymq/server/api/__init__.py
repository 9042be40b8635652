"""What a broker answers over HTTP: `routes` is the table of it all, its rows' handlers stand beside it, by subject.

Handlers run on the loop's thread: what takes longer goes in turns or in threads of its own.
"""
