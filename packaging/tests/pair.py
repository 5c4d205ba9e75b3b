"""One TCP connection that carries a counted byte back and forth: `pair.py server PORT` and
`pair.py client PORT FILE`. The client writes to FILE how many came back, until it is killed."""
import os
import socket
import sys
import time

role, port = sys.argv[1], int(sys.argv[2])
if role == "server":
    listener = socket.create_server(("127.0.0.1", port))
    connection, _ = listener.accept()
    while byte := connection.recv(1):
        connection.sendall(byte)
else:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    count = 0
    while True:
        sent = bytes([count % 256])
        connection.sendall(sent)
        if connection.recv(1) != sent:
            sys.exit(f"byte {count} did not come back")
        count += 1
        if count % 100 == 0:
            with open(sys.argv[3] + ".new", "w") as file:
                file.write(str(count))
            os.replace(sys.argv[3] + ".new", sys.argv[3])
            time.sleep(0.01)
