"""The HTTP server itself: listening, limits of time and size, who may ask, and the form of answers. Load it late."""
