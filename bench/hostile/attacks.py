"""What hostile clients do, one function an attack, each run in a process of its own until `until`.

Each returns how often it has done what it does. A close, a refusal or a reset by the switch is what should happen, and the attack
goes on with the next connection.
"""

import contextlib
import os
import random
import select
import socket
import ssl
import time

GONE = (OSError, ssl.SSLError)


def sources(first, count):
    """Addresses of loopback that attackers come from: each is a client of its own to the switch."""
    return [f"127.{first}.{at // 250}.{at % 250 + 1}" for at in range(count)]


def connect(address, source, timeout=2.0):
    made = socket.socket()
    made.settimeout(timeout)
    with contextlib.suppress(OSError):
        made.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
    made.bind((source, 0))
    made.connect(address)
    return made


def crowd(address, from_, size, begin, drip, until, pace=1.0, read=0):
    """Holds `size` connections, each of which sends `begin` and then `drip` every `pace` seconds."""
    held, made, turn = [], 0, 0
    while time.monotonic() < until:
        round_end = time.monotonic() + pace
        alive = []
        for connection in held:
            try:
                if read:
                    with contextlib.suppress(BlockingIOError):
                        if not connection.recv(read):
                            raise ConnectionError
                if drip:
                    connection.send(drip)
                alive.append(connection)
            except BlockingIOError:
                alive.append(connection)
            except GONE:
                connection.close()
        held = alive
        # Up to a tenth of the crowd a round, so that the attack does not choke on itself.
        for _ in range(min(size - len(held), max(size // 10, 100))):
            if time.monotonic() > until:
                break
            turn += 1
            connection = None
            try:
                connection = connect(address, from_[turn % len(from_)])
                connection.sendall(begin)
                connection.setblocking(False)
                held.append(connection)
                made += 1
            except GONE:
                if connection:
                    connection.close()
        time.sleep(max(0.0, min(round_end, until) - time.monotonic()))
    for connection in held:
        connection.close()
    return made


def slow_heads(target, size, until):
    begin = b"GET /t1 HTTP/1.1\r\nHost: a\r\nX-Slow: "
    return crowd(target["clear"], sources(1, 40), size, begin, b"a", until)


def slow_bodies(target, size, until):
    begin = b"POST /t1 HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
    return crowd(target["clear"], sources(2, 40), size, begin, b"a", until)


def slow_readers(target, size, until):
    begin = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n" * 4
    return crowd(target["clear"], sources(3, 40), size, begin, b"", until, read=1)


def silent(target, size, until):
    """Connections that say nothing, where TLS should begin."""
    return crowd(target["tls"], sources(4, 40), size, b"", b"", until)


def distinct_urls(target, count, until):
    """Requests for targets that nobody has asked for before, pipelined. Stops at `count`."""
    done, batch = 0, 64
    from_ = sources(5, 16)
    while time.monotonic() < until and done < count:
        try:
            with connect(target["clear"], from_[done // batch % len(from_)]) as connection:
                for _ in range(50):
                    first = random.getrandbits(60)
                    sent = b"".join(b"GET /d/%x HTTP/1.1\r\nHost: h%x\r\n\r\n" % (first + at, at % 7) for at in range(batch))
                    connection.sendall(sent)
                    answered, held = 0, b""
                    while answered < batch:
                        read = connection.recv(1 << 17)
                        if not read:
                            raise ConnectionError
                        held = held[-8:] + read
                        answered += held.count(b"HTTP/1.1 ")
                    done += batch
                    if time.monotonic() > until or done >= count:
                        break
        except GONE:
            time.sleep(0.01)
    return done


def broken_tls(target, _size, until):
    """Rubbish, half handshakes, and handshakes that are broken off."""
    tries, from_ = 0, sources(6, 16)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="a.test").do_handshake()
    hello = outgoing.read()
    while time.monotonic() < until:
        tries += 1
        with contextlib.suppress(*GONE):
            with connect(target["tls"], from_[tries % len(from_)]) as connection:
                match tries % 5:
                    case 0:
                        connection.sendall(os.urandom(random.randrange(1, 4096)))
                    case 1:
                        connection.sendall(hello[: random.randrange(len(hello))])
                    case 2:
                        spoilt = bytearray(hello)
                        spoilt[random.randrange(len(spoilt))] ^= 1 << random.randrange(8)
                        connection.sendall(spoilt)
                        connection.settimeout(0.2)
                        connection.recv(4096)
                    case 3:
                        connection.sendall(hello)
                        connection.settimeout(0.2)
                        connection.recv(4096)
                    case 4:
                        with context.wrap_socket(connection, server_hostname="b.test") as secure:
                            secure.sendall(b"GET /t1 HTTP/1.1\r\nHost")
    return tries


def endless_heads(target, _size, until):
    """Heads, targets, trailers and chunk extensions without end, as fast as they are taken."""
    tries, from_ = 0, sources(7, 16)
    begins = [
        (b"GET /t1 HTTP/1.1\r\nHost: a\r\n", b"X-Endless: " + b"a" * 8000 + b"\r\n"),
        (b"GET /", b"a" * 8000),
        (b"GET /t1 HTTP/1.1\r\nHost: a\r\nX: ", b"a" * 8000),
        (b"POST /t1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 8000),
        (b"POST /t1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: " + b"a" * 8000 + b"\r\n"),
        (b"\r\n" * 4000, b"\r\n" * 4000),
    ]
    while time.monotonic() < until:
        begin, more = begins[tries % len(begins)]
        tries += 1
        with contextlib.suppress(*GONE):
            with connect(target["clear"], from_[tries % len(from_)]) as connection:
                connection.sendall(begin)
                for _ in range(2000):
                    connection.sendall(more)
                    if select.select([connection], [], [], 0)[0] and not connection.recv(65536):
                        break
    return tries


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def http2_connect(target, source):
    """Where HTTP/2 is spoken: without TLS at a switch, with it at a node."""
    made = connect(target["clear"] if target["h2c"] else target["tls"], source)
    if target["h2c"]:
        return made
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(made, server_hostname="a.test")


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP2_HEAD = b"\x82\x86\x84\x41\x01a"  # GET http / of host a, by the static table
HTTP2_LARGE = b"\x82\x86\x04\x06/large\x41\x01a"
WINDOW_MAX = 0x7FFFFFFF


class Frames:
    """Reads frames from a connection of HTTP/2."""

    def __init__(self, connection):
        self.connection, self.held = connection, b""

    def read(self):
        """The kind, flags and stream of the next frame."""
        while len(self.held) < 9 or len(self.held) < 9 + int.from_bytes(self.held[:3], "big"):
            read = self.connection.recv(1 << 17)
            if not read:
                raise ConnectionError
            self.held += read
        length = int.from_bytes(self.held[:3], "big")
        kind, flags, stream = self.held[3], self.held[4], int.from_bytes(self.held[5:9], "big")
        self.held = self.held[9 + length :]
        return kind, flags, stream


def reset_accepted(connection, until):
    """Resets streams whose reply has begun, so that the server has accepted them. Returns how many, until the server ends the
    connection."""
    frames, resets, stream = Frames(connection), 0, 1
    connection.sendall(HTTP2_PREFACE + frame(4, 0, 0, b"\0\x04\0\0\0\0"))
    with contextlib.suppress(*GONE):
        while time.monotonic() < until:
            # No more than a switch has memory for, on one connection, so that all are answered.
            opened = range(stream, stream + 16, 2)
            stream += 16
            connection.sendall(b"".join(frame(1, 5, at, HTTP2_LARGE) for at in opened))
            begun = set()
            while len(begun) < len(opened):
                kind, _, at = frames.read()
                if kind == 1:
                    begun.add(at)
                elif kind == 7:
                    raise ConnectionError
            connection.sendall(b"".join(frame(3, 0, at, b"\0\0\0\x08") for at in opened))
            resets += len(opened)
    return resets


def http2_resets(target, _size, until):
    """Rapid reset after one round trip: counts the resets."""
    resets, tries, from_ = 0, 0, sources(11, 16)
    while time.monotonic() < until:
        tries += 1
        with contextlib.suppress(*GONE):
            with http2_connect(target, from_[tries % len(from_)]) as connection:
                resets += reset_accepted(connection, until)
    return resets


def http2_stalls(target, size, until):
    """Holds `size` connections with 100 requests for a large object each, of which it takes nothing: by turns without a window for any
    reply, with a window of a byte for each, and with open windows while nothing is read. Every second each connection resets the 16
    requests that it opened last, which wait for memory, and opens 16 others."""
    held, made, from_ = [], 0, sources(10, 40)
    streams = b"".join(frame(1, 5, stream, HTTP2_LARGE) for stream in range(1, 201, 2))
    windows = [0, 1, WINDOW_MAX]
    while time.monotonic() < until:
        alive = []
        for connection, next_ in held:
            resets = b"".join(frame(3, 0, stream, b"\0\0\0\x08") for stream in range(next_ - 32, next_, 2))
            others = b"".join(frame(1, 5, stream, HTTP2_LARGE) for stream in range(next_, next_ + 32, 2))
            try:
                connection.sendall(resets + others + frame(6, 0, 0, b"12345678"))
                alive.append((connection, next_ + 32))
            except GONE:
                connection.close()
        held = alive
        while len(held) < size and time.monotonic() < until:
            made += 1
            with contextlib.suppress(*GONE):
                connection = http2_connect(target, from_[made % len(from_)])
                settings = frame(4, 0, 0, b"\0\x04" + windows[made % 3].to_bytes(4, "big"))
                opened = frame(8, 0, 0, (WINDOW_MAX - 65_535).to_bytes(4, "big"))
                connection.sendall(HTTP2_PREFACE + settings + opened + streams)
                held.append((connection, 201))
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))
    for connection, _ in held:
        connection.close()
    return made


def http2_abuse(target, _size, until):
    """Streams that are reset before they are accepted and by the server, heads continued without end, and frames that carry nothing,
    also while a request is under way."""
    tries, from_ = 0, sources(8, 16)
    preface = HTTP2_PREFACE + frame(4, 0, 0, b"")
    head, large = HTTP2_HEAD, HTTP2_LARGE
    while time.monotonic() < until:
        tries += 1
        with contextlib.suppress(*GONE):
            with http2_connect(target, from_[tries % len(from_)]) as connection:
                # In the second half of the tries a request is under way for which there is no window.
                begun = frame(4, 0, 0, b"\0\x04\0\0\0\0") + frame(1, 5, 1, large) if tries % 12 >= 6 else b""
                connection.sendall(preface + begun)
                for at in range(200):
                    first = 3 + 40 * at
                    streams = range(first, first + 40, 2)
                    match tries % 6:
                        case 0:
                            out = b"".join(frame(1, 5, s, head) + frame(3, 0, s, b"\0\0\0\x08") for s in streams)
                        case 1:
                            begin = frame(1, 0, 3, head) if at == 0 else b""
                            out = begin + frame(9, 0, 3, b"\0\x01x\x7f\x81\x7e" + b"a" * 253) * 50
                        case 2:
                            out = frame(6, 0, 0, b"12345678") * 500
                        case 3:
                            out = frame(4, 0, 0, b"\0\x03\0\0\0\x64") * 500
                        case 4:  # a window beyond what it may be, for which the server resets the stream
                            out = b"".join(frame(1, 5, s, large) + frame(8, 0, s, b"\x7f\xff\xff\xff") for s in streams)
                        case 5:
                            out = (frame(2, 0, 5, b"\0\0\0\0\x10") + frame(8, 0, 0, b"\0\0\0\x01")) * 250
                    connection.sendall(out)
                    if select.select([connection], [], [], 0)[0] and not connection.recv(65536):
                        break
    return tries


def malformed(target, _size, until):
    """Every malformed request of the conformance corpus, over and over."""
    import sys

    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "conformance"))
    import corpus

    cases = [case for case in corpus.read() if case.send and case.kind == "malformed" and len(case.send) < 200_000]
    tries, from_ = 0, sources(9, 16)
    while time.monotonic() < until:
        case = cases[tries % len(cases)]
        tries += 1
        with contextlib.suppress(*GONE):
            with connect(target["clear"], from_[tries % len(from_)]) as connection:
                connection.sendall(case.send.encode("latin-1"))
                connection.settimeout(0.05)
                connection.recv(4096)
    return tries


# Name, function, the share of --slow that it is given, and how many do it at a time, between whom that or --urls is divided.
ATTACKS = [
    ("slow heads", slow_heads, 0.5, 1),
    ("slow bodies", slow_bodies, 0.2, 1),
    ("slow readers", slow_readers, 0.1, 1),
    ("silent connections", silent, 0.2, 1),
    ("distinct URLs", distinct_urls, 0, 6),
    ("broken TLS", broken_tls, 0, 1),
    ("endless heads", endless_heads, 0, 1),
    ("HTTP/2 abuse", http2_abuse, 0, 1),
    ("HTTP/2 resets", http2_resets, 0, 1),
    ("stalled HTTP/2", http2_stalls, 0.1, 1),
    ("malformed requests", malformed, 0, 1),
]
