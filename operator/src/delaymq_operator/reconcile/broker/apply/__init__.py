"""Creation and update of objects: `ensure` applies a single object, the other modules determine which.

Idempotent: an object in its desired state costs no request, and foreign objects are never changed.
"""
