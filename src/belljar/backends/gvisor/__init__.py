"""Containers with a kernel of their own: descriptors are relayed, because none can be passed."""
