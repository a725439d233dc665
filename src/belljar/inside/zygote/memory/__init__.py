"""How the warm process arranges its memory, so that a fork touches few pages."""
