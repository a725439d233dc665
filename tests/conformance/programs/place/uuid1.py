import uuid
print(uuid.uuid1().version, uuid.getnode() > 0)
