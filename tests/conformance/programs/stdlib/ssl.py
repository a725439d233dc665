import ssl
context = ssl.create_default_context()
print(ssl.OPENSSL_VERSION, context.verify_mode.name, ssl.RAND_status())
