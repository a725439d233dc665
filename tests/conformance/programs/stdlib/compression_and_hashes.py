import bz2, gzip, hashlib, hmac, lzma, zlib
data = b"text " * 1000
print([len(module.decompress(module.compress(data))) for module in (zlib, gzip, bz2, lzma)])
print(hashlib.md5(data).hexdigest(), hashlib.sha3_256(data).hexdigest()[:16], hmac.new(b"k", data, "sha256").hexdigest()[:16])
print(hashlib.scrypt(b"p", salt=b"s", n=2, r=1, p=1).hex()[:16])
