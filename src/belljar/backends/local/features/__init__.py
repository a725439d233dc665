"""What only some programs ask for: tools, coverage, network, restricted Python."""
