"""The first process of a pool's namespaces: it builds the guests' root, starts zygotes and reaps."""
