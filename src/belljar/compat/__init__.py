"""Drop-in replacements for the client functions of other systems."""
