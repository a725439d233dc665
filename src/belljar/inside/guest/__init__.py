"""What runs in the jail beside the program. Its neighbours are hostile."""
