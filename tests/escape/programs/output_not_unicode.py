# Property 52: bytes that are not text, and characters that get longer when escaped.
# expect: status=ok exit=0
# limits: output_kb=64

import os

os.write(1, bytes(range(256)) * 64 + b"\0" * 16384 + b"\xed\xa0\x80\xf4\x90\x80\x80\xff")
os.write(2, "\u2028\x1b]0;title\x07".encode() + b"\xc3")
