"""One program in one guest: input, output, deadlines, artifacts."""
