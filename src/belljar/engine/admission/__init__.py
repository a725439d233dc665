"""What a caller asks for, checked and made into an Execution."""
