"""Our own tools for the web: searching, reading pages and papers, asking a language model."""
