"""What runs in the jail beside the program. Standard library and `channel` only: its neighbours are hostile."""
