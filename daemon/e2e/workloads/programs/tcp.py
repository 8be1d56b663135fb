"""A connection to itself by TCP, one by a Unix socket, and a listening socket; for each word says what goes through."""
import socket
import sys

listening = socket.create_server(("127.0.0.1", 8082))
out = socket.create_connection(("127.0.0.1", 8082))
inside, _ = listening.accept()
a, b = socket.socketpair()


def through(x, y):
    try:
        x.sendall(b"x")
        return "open" if y.recv(1) == b"x" else "ended"
    except OSError as e:
        return "ended"


for line in sys.stdin:
    anew = socket.create_connection(("127.0.0.1", 8082))
    accepted, _ = listening.accept()
    print("<tcp %s, unix %s, anew %s>" % (through(out, inside), through(a, b), through(anew, accepted)), flush=True)
