"""The warm processes: the warden that holds their place, the zygotes that fork guests, and the host's handles."""
