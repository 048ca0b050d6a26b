"""An origin that writes down what it is sent, byte for byte, and what of it has more than one meaning."""

import re
import socket
import threading

TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
HEAD_MAX = 1 << 20


class Request:
    def __init__(self, head, body, faults):
        lines = head.split(b"\r\n")
        words = lines[0].split(b" ")
        self.method = words[0].decode("latin-1")
        self.target = words[1].decode("latin-1") if len(words) > 1 else ""
        self.body = body.decode("latin-1")
        self.head = head
        self.faults = faults

    def lines(self):
        found = []
        for line in self.head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            found.append((name.strip().lower().decode("latin-1"), value.strip().decode("latin-1")))
        return found

    def values(self, name):
        return [value for key, value in self.lines() if key == name]


def faults_of(head):
    """Why another origin might read this head otherwise."""
    faults = []
    if re.search(rb"(?<!\r)\n", head):
        faults.append("bare LF")
    if re.search(rb"\r(?!\n)", head):
        faults.append("bare CR")
    if re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", head):
        faults.append("control character")
    lines = re.split(rb"\r\n|\n", head)
    line = lines[0]
    words = line.split(b" ")
    if len(words) != 3 or not TOKEN.match(words[0]) or not re.match(rb"HTTP/1\.[01]\Z", words[2]):
        faults.append("request line")
    elif re.search(rb"[\x00-\x20\x7f]", words[1]) or not words[1]:
        faults.append("target")
    fields = {}
    for line in lines[1:]:
        if not line:
            continue
        if line[:1] in b" \t":
            faults.append("folded line")
            continue
        name, colon, value = line.partition(b":")
        if not colon or not TOKEN.match(name):
            faults.append("field name")
        fields.setdefault(name.strip().lower(), []).append(value.strip(b" \t"))
    lengths, codings = fields.get(b"content-length", []), fields.get(b"transfer-encoding", [])
    if len(lengths) > 1 or any(not re.match(rb"\d+\Z", value) for value in lengths):
        faults.append("Content-Length")
    if codings and [value.lower() for value in codings] != [b"chunked"]:
        faults.append("Transfer-Encoding")
    if lengths and codings:
        faults.append("two lengths")
    hosts = fields.get(b"host", [])
    http10 = len(words) == 3 and words[2] == b"HTTP/1.0"
    if len(hosts) > 1 or not hosts and not http10:
        faults.append("Host")
    elif hosts and not re.match(rb"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(:\d*)?\Z", hosts[0]):
        faults.append("Host")
    absolute = re.match(rb"\w+://([^/?#]*)", words[1]) if len(words) > 1 else None
    if absolute and hosts and absolute[1].lower() != hosts[0].lower():
        faults.append("two hosts")
    return faults


class Origin:
    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.case, self.requests, self.partial = None, [], []
        self.busy = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def begin(self, case):
        with self.lock:
            self.case, self.requests, self.partial = case, [], []

    def seen(self):
        with self.lock:
            return list(self.requests), list(self.partial)

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection:
            try:
                connection.settimeout(120)
                self.requests_of(Reader(connection))
            except OSError:
                pass

    def requests_of(self, reader):
        while True:
            head = reader.head()
            if not head:
                if reader.rest():
                    self.note_partial(reader.rest())
                return
            faults = faults_of(head)
            if re.search(rb"\r\nexpect:\s*100-continue", head, re.I):
                reader.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            try:
                body, more = reader.body(head)
            except EOFError:
                self.note_partial(head)
                return
            request = Request(head, body, faults + more)
            with self.lock:
                self.requests.append(request)
                case = self.case
            if not self.answer(reader.connection, request, case):
                return

    def note_partial(self, head):
        with self.lock:
            self.partial.append(head)

    def answer(self, connection, request, case):
        if case and case.reply is not None and request.target == f"/c/{case.id}":
            reply = case.reply
            if b" HTTP/1.0" in request.head.split(b"\r\n")[0]:
                # No origin answers such a request in chunks.
                reply = reply.replace("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "Content-Length: 3\r\n\r\nabc")
            connection.sendall(reply.encode("latin-1"))
            return not case.closes
        body = f"{request.target}\n".encode("latin-1")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + (b"" if request.method == "HEAD" else body))
        return b"connection: close" not in request.head.lower()


class Reader:
    """The bytes of a connection, with the framing of RFC 9112: Transfer-Encoding before Content-Length."""

    def __init__(self, connection):
        self.connection, self.buffer = connection, b""

    def rest(self):
        return self.buffer

    def more(self):
        read = self.connection.recv(65536)
        if not read:
            raise EOFError
        self.buffer += read

    def head(self):
        try:
            while True:
                end = re.search(rb"\r?\n\r?\n", self.buffer)
                if end:
                    head, self.buffer = self.buffer[:end.start()], self.buffer[end.end():]
                    return head
                if len(self.buffer) > HEAD_MAX:
                    return b""
                self.more()
        except (EOFError, OSError):
            return b""

    def take(self, count):
        while len(self.buffer) < count:
            self.more()
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def line(self):
        while b"\n" not in self.buffer:
            self.more()
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def body(self, head):
        if re.search(rb"\ntransfer-encoding[ \t]*:", head, re.I):
            return self.chunks()
        length = re.search(rb"\ncontent-length[ \t]*:\s*(\d+)", head, re.I)
        return (self.take(int(length[1])) if length else b""), []

    def chunks(self):
        body, faults = b"", []
        while True:
            line = self.line()
            if not re.match(rb"[0-9A-Fa-f]+\r\Z", line):
                faults.append("chunk size")
            digits = re.match(rb"[0-9A-Fa-f]+", line)
            if not digits:
                return body, faults
            size = int(digits[0], 16)
            if size == 0:
                break
            body += self.take(size)
            if self.take(2) != b"\r\n":
                faults.append("chunk end")
                return body, faults
        while True:
            trailer = self.line()
            if trailer in (b"\r", b""):
                return body, faults
            if re.match(rb"(content-length|transfer-encoding|host)\s*:", trailer, re.I):
                faults.append("trailer")
