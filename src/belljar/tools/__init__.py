"""Functions of the host that programs may call: where they come from, and who checks and answers a call."""
