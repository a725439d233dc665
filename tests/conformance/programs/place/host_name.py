import platform, socket
print(socket.gethostname())
print(platform.node() == socket.gethostname())
