"""The shared words: what is asked, what was observed, what is answered. Standard library only, no I/O."""
