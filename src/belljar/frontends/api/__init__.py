"""The HTTP server: the native API, and the dialects of other systems."""
