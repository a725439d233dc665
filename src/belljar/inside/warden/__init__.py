"""The warden: the first process of a pool's namespaces, which builds the guests' root and starts zygotes and jails."""
