"""A trivial HTTP/1.1 server at many addresses of one port: one short reply to each request. It ends when its stdin is closed.

Arguments: the number of addresses. It prints the port.
"""

import contextlib
import select
import socket
import sys

REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 64\r\n\r\n" + b"x" * 64


def addresses(count):
    """Returns addresses of the loopback network: 127.0.1.1 to 127.0.1.250, 127.0.2.1 and so on."""
    return [f"127.0.{1 + number // 250}.{1 + number % 250}" for number in range(count)]


def listen(count):
    """Listens on one free port of all addresses."""
    for _ in range(20):
        sockets, port = [], 0
        with contextlib.suppress(OSError):
            for address in addresses(count):
                listener = socket.socket()
                sockets.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address, port))
                listener.listen(1024)
                listener.setblocking(False)
                port = listener.getsockname()[1]
            return sockets, port
        for listener in sockets:
            listener.close()
    sys.exit("no port is free at all addresses")


def serve(listeners):
    events = select.epoll()
    events.register(sys.stdin.fileno(), select.EPOLLIN)
    accepting = {listener.fileno(): listener for listener in listeners}
    for number in accepting:
        events.register(number, select.EPOLLIN)
    connections = {}
    while True:
        for number, _ in events.poll():
            if connection := connections.get(number):
                try:
                    data = connection.recv(65536)
                    if data:
                        connection.send(REPLY * data.count(b"\r\n\r\n"))
                        continue
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                del connections[number]
                events.unregister(number)
                connection.close()
            elif listener := accepting.get(number):
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    connection.setblocking(False)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connections[connection.fileno()] = connection
                    events.register(connection.fileno(), select.EPOLLIN)
            elif not sys.stdin.buffer.read1():
                return


if __name__ == "__main__":
    all_listeners, chosen = listen(int(sys.argv[1]))
    print(chosen, flush=True)
    serve(all_listeners)
