"""X-Master's API proxy."""
