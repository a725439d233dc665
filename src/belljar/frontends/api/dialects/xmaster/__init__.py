"""The API of X-Master's code server."""
