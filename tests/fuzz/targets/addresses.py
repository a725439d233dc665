"""Names and addresses that programs and pages want to be reached."""

from __future__ import annotations

import ipaddress

from belljar.egress.rules import Refused, Rules, is_public, meant_by, read_host

ALLOWED = (Refused, ValueError)
TOKENS = (b"127.0.0.1", b"::ffff:", b"64:ff9b::", b"2002:", b"2001:0:", b"fe80::a9fe:a9fe", b"%lo", b"xn--", b"[", b"]")
_RULES = Rules(ports=frozenset({80}), allow=("*.test", "*a*b*c*"), deny=("*x*x*x*y",))


def run(data: bytes) -> None:
    text = data.decode("latin-1")
    try:
        host = read_host(text)
    except Refused:
        pass
    else:
        assert len(host) < 256
        try:
            _RULES.check_name(host, 80)
        except Refused:
            pass
    if is_public(text):
        for address in meant_by(text):
            assert address.is_global
            assert address not in ipaddress.ip_network("169.254.0.0/16" if address.version == 4 else "fc00::/7")
