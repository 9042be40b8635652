"""Makes objects as they are wanted: `ensure` applies one, the other modules say which.

Idempotent: an object that is as wanted costs no request, and what belongs to somebody else is never touched.
"""
