"""The container back end: a warm container per environment is the outer wall, our jail inside it the inner one."""
