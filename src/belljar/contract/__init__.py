"""The types that every part shares: requests, observations, answers, errors. Standard library only, no I/O."""
