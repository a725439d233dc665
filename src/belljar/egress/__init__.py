"""Network access for programs that are allowed it: a proxy process outside the jail connects on their behalf.

The program's own network namespace stays empty. It gets a listener on its loopback interface; the proxy (`process`)
accepts there, without any rights on the host. It parses HTTP and SOCKS (`protocols`), applies `rules`, and counts.
"""
