"""`delaymq demo`: a broker of its own, delayed messages, a kill -9 in between, and a count of what arrived."""
