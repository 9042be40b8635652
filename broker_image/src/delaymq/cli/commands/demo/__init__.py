"""`delaymq demo`: a separate broker, delayed messages, a kill -9 before delivery, and a count of the arrivals."""
