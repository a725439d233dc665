"""Nothing but a docstring."""
