"""The built-in web tools: search, read pages and papers, ask a language model."""
