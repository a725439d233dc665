"""Where programs run. A back end reports facts; it never judges, and nothing above knows how it works."""
