"""TCP connections one after the other, each with some round trips: `calls.py server PORT` and
`calls.py client PORT FILE`. The client writes to FILE how many came to their end, until it is killed."""
import os
import socket
import sys
import time

role, port = sys.argv[1], int(sys.argv[2])
if role == "server":
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        connection, _ = listener.accept()
        while byte := connection.recv(1):
            connection.sendall(byte)
        connection.close()
count = 0
while True:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for number in range(100):
            connection.sendall(bytes([number]))
            if connection.recv(1) != bytes([number]):
                sys.exit(f"byte {number} of connection {count} did not come back")
    count += 1
    with open(sys.argv[3] + ".new", "w") as file:
        file.write(str(count))
    os.replace(sys.argv[3] + ".new", sys.argv[3])
    time.sleep(0.1)
