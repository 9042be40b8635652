"""HTTP server: listening, time and size limits, access checks, and response formats. To be imported lazily."""
