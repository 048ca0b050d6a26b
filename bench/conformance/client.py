"""Clients that send raw bytes and read what comes, in HTTP/1.1 and HTTP/2."""

import re
import socket
import ssl
import struct
import time

QUIET_S = 0.25  # for what may still come behind the answers that were expected
PATIENCE_S = 2.5


class Answer:
    def __init__(self):
        self.statuses, self.raw, self.closed, self.whole = [], b"", False, True

    @property
    def final(self):
        finals = [status for status in self.statuses if status >= 200 or status == 101]
        return finals[0] if finals else None


def ask(port, case, replies, tls=False):
    """`tls`: whether HTTP/2 is agreed on by a handshake first."""
    answer = Answer()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if case.fields is None:
                http1(connection, case, replies, answer)
            elif tls:
                with secured(connection) as secure:
                    http2(secure, case, answer)
            else:
                http2(connection, case, answer)
        except (ConnectionError, socket.timeout, ssl.SSLError):
            answer.closed = True
    return answer


def secured(connection):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(connection)


def receive(connection, until):
    """Bytes, b"" for the end, None if nothing comes."""
    left = until - time.monotonic()
    if left <= 0:
        return None
    connection.settimeout(left)
    try:
        return connection.recv(1 << 16)
    except socket.timeout:
        return None


def http1(connection, case, replies, answer):
    try:
        connection.sendall(case.send.encode("latin-1"))
        if case.ends:
            connection.shutdown(socket.SHUT_WR)
    except ConnectionError:
        pass  # an answer may be there all the same
    then, until = case.then, time.monotonic() + PATIENCE_S
    methods = re.findall(r"(?:^|\n|abc|a)([A-Z]+) /\S* HTTP", case.send)
    while True:
        try:
            read = receive(connection, min(until, time.monotonic() + 0.6) if then else until)
        except ConnectionError:
            answer.closed = True
            break
        if then and read != b"":
            connection.sendall(then.encode("latin-1"))
            then = ""
            if read is None:
                continue
        if read is None:
            break
        if read == b"":
            answer.closed = True
            break
        answer.raw += read
        parse(answer, methods)
        if len([status for status in answer.statuses if status >= 200]) >= replies and answer.whole:
            until = min(until, time.monotonic() + QUIET_S)
    parse(answer, methods)


def parse(answer, methods):
    """Fills in the statuses, and whether the last reply is whole."""
    answer.statuses, answer.whole, at, turn = [], True, 0, 0
    raw = answer.raw
    while at < len(raw):
        end = raw.find(b"\r\n\r\n", at)
        line = re.match(rb"HTTP/1\.[01] (\d{3})", raw[at:at + 12])
        if end < 0 or not line:
            answer.whole = False
            return
        head, at = raw[at:end].lower(), end + 4
        status = int(line[1])
        answer.statuses.append(status)
        if status == 101:
            return
        if status < 200:
            continue
        method = methods[turn] if turn < len(methods) else "GET"
        turn += 1
        if method == "HEAD" or status in (204, 304):
            continue
        length = re.search(rb"\r\ncontent-length: *(\d+)", head)
        if b"\r\ntransfer-encoding" in head:
            at = chunks_end(raw, at)
        elif length:
            at += int(length[1])
        else:
            answer.whole = answer.closed
            return
        if at is None or at > len(raw):
            answer.whole = False
            return


def chunks_end(raw, at):
    while True:
        line = re.match(rb"([0-9A-Fa-f]+)[^\n]*\n", raw[at:at + 100])
        if not line:
            return None
        size = int(line[1], 16)
        at += line.end() + size + (2 if size else 0)
        if size == 0:
            end = raw.find(b"\r\n", at) if raw[at:at + 2] == b"\r\n" else raw.find(b"\r\n\r\n", at) + 2
            return end + 2 if end >= at else None
        if at > len(raw):
            return None


# --------------------------------------------------------------------------------------------------------------- HTTP/2

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
FRAME_MAX = 16_384
INDEXED = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}
# The codes of digits (RFC 7541 appendix B): bits and their number.
DIGITS = {(0x00, 5): "0", (0x01, 5): "1", (0x02, 5): "2", **{(0x19 + at, 6): str(3 + at) for at in range(7)}}


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def number(value, bits):
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    out, value = [most], value - most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def block(fields):
    out = b""
    for name, value in fields:
        for text in (name, value):
            raw = text.encode("latin-1")
            out += (b"\0" if text is name else b"") + number(len(raw), 7) + raw
    return out


def head_frames(fields, end):
    raw = block(fields)
    parts = [raw[at:at + FRAME_MAX] for at in range(0, len(raw), FRAME_MAX)] or [b""]
    frames = b""
    for at, part in enumerate(parts):
        flags = (4 if at == len(parts) - 1 else 0) | (1 if end and at == 0 else 0)
        frames += frame(HEADERS if at == 0 else CONTINUATION, flags, 1, part)
    return frames


def status_of(raw):
    """The status that begins a block of fields."""
    while raw and raw[0] & 0xe0 == 0x20:
        raw = raw[1:] if raw[0] & 0x1f != 0x1f else raw[3:]
    if not raw:
        return None
    if raw[0] & 0x80:
        return INDEXED.get(raw[0] & 0x7f)
    length, huffman, text = raw[1] & 0x7f, raw[1] & 0x80, raw[2:2 + (raw[1] & 0x7f)]
    if not huffman:
        return int(text)
    bits, digits = "".join(f"{byte:08b}" for byte in text[:length]), ""
    while len(digits) < 3:
        for size in (5, 6):
            found = DIGITS.get((int(bits[:size], 2), size))
            if found:
                digits, bits = digits + found, bits[size:]
                break
        else:
            return None
    return int(digits)


def http2(connection, case, answer):
    out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")
    more = bool(case.data or case.trailers)
    out += head_frames(case.fields, not more)
    for at, data in enumerate(case.data):
        last = at == len(case.data) - 1 and not case.trailers
        out += frame(DATA, 1 if last else 0, 1, data.encode("latin-1"))
    if case.trailers:
        out += head_frames(case.trailers, True)
    try:
        connection.sendall(out)
    except ConnectionError:
        pass
    buffer, until = b"", time.monotonic() + PATIENCE_S
    while True:
        read = receive(connection, until)
        if not read:
            answer.closed = answer.closed or read == b""
            return
        buffer += read
        while len(buffer) >= 9 and len(buffer) >= 9 + int.from_bytes(buffer[:3], "big"):
            size, kind, flags = int.from_bytes(buffer[:3], "big"), buffer[3], buffer[4]
            payload, buffer = buffer[9:9 + size], buffer[9 + size:]
            if kind == SETTINGS and not flags & 1:
                connection.sendall(frame(SETTINGS, 1, 0, b""))
            elif kind == HEADERS:
                payload = payload[5:] if flags & 0x20 else payload
                status = status_of(payload)
                if status:
                    answer.statuses.append(status)
            elif kind == DATA:
                answer.raw += payload
            if kind in (RST, GOAWAY):
                answer.closed = True
                until = min(until, time.monotonic() + QUIET_S)
            elif kind in (HEADERS, DATA) and flags & 1:
                until = min(until, time.monotonic() + QUIET_S)
