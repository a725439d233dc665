"""The warm process that guests are forked from."""
