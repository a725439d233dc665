import _bisect, _datetime, _decimal, _hashlib, _sqlite3, _ssl, array, binascii, bz2, lzma, mmap, pyexpat, readline, unicodedata, zlib
print("all there", zlib.crc32(b"x"), unicodedata.name("ü"), array.array("i", [1, 2]))
