import socket
try:
    socket.create_connection(("192.0.2.1", 80), timeout=0.2)
except OSError as error:
    print("no network")
print(socket.gethostbyname("localhost"), socket.getservbyname("http"))
