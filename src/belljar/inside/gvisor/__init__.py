"""The agent in a container whose kernel is not the host's, and the guests that it starts."""
