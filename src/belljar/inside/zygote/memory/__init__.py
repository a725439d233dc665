"""How the zygote arranges its memory, so that its forks touch and copy few pages."""
