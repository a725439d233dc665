"""Functions that people know from other systems' clients, to be imported in their place."""
