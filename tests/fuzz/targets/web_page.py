"""Pages of strangers, as far as the server itself looks at them, and what a model answers about them."""

from __future__ import annotations

from belljar.tools.web import charsets
from belljar.tools.web.access import _read_summary

ALLOWED = ()
TOKENS = (
    *(label.encode() for label in ("charset=", "utf-16", "gb18030", "iso-2022-jp", "shift_jis", "punycode")),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"```json", b"```", b'{"content":"a"}', b"\x1b$B"),
)


def run(data: bytes) -> None:
    kind, _, content = data.partition(b"\n")
    codec = charsets.find(content, kind.decode("latin-1"))
    assert codec in set(charsets.CODECS.values())
    charsets.decode(content, codec).encode()
    answer = _read_summary(data.decode("utf-8", "replace"))
    assert set(answer) == {"content", "urls", "score"}
