import os, random, secrets, uuid
print(len(os.urandom(8)), len(secrets.token_hex(4)), uuid.uuid4().version, random.Random(5).random(), random.SystemRandom().random() < 1)
random.seed(3)
print(random.random(), random.choice("abc"), random.sample(range(100), 3))
