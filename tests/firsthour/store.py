#!/usr/bin/env python3
"""A node before a store that speaks https and requires signatures, with the clients that people use.

The script starts a store (https with a certificate of its own authority; each request must have an AWS signature of version 4,
verified after Amazon's "Authenticating Requests: Using the Authorization Header"), a larder node before it that signs, and has
aria2 and boto3 fetch one object in 16 parallel ranges, three times each. It fails if a checksum is wrong, if the store has refused a
request of the node, or if a fetch after the first of its client goes to the store.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install boto3
    /tmp/venv/bin/python tests/firsthour/store.py --larder target/release/larder --size 1GiB

It needs openssl and aria2c. It writes into a temporary directory alone, and ends the processes that it has started.
"""

import argparse
import base64
import contextlib
import hashlib
import hmac
import http.client
import http.server
import json
import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import zlib

ACCESS_KEY, SECRET_KEY, REGION = "FIRSTHOUR", "first-hour-secret", "eu-test-1"
PARTS = 16
DEADLINE_S = 60


def sha256_hex(data):
    return hashlib.sha256(data).hexdigest()


class WrongSignature(Exception):
    pass


def verify(method, target, fields, body):
    """Raises unless the request has the signature of the keys above. `fields` have names in lower case."""
    scheme, _, rest = fields.get("authorization", "").partition(" ")
    if scheme != "AWS4-HMAC-SHA256":
        raise WrongSignature("no signature")
    parameters = dict(pair.strip().split("=", 1) for pair in rest.split(","))
    key, date, region, service, end = parameters["Credential"].split("/")
    if (key, region, service, end) != (ACCESS_KEY, REGION, "s3", "aws4_request"):
        raise WrongSignature(f"credential {parameters['Credential']}")
    signed = parameters["SignedHeaders"].split(";")
    missing = [name for name in fields if name == "host" or name.startswith("x-amz-")]
    missing = [name for name in missing if name not in signed]
    if missing:
        raise WrongSignature(f"not signed: {missing}")
    stamp = fields["x-amz-date"]
    sent = time.mktime(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) - time.timezone
    if not stamp.startswith(date) or abs(time.time() - sent) > 900:
        raise WrongSignature(f"date {stamp}")
    payload = fields["x-amz-content-sha256"]
    if len(payload) == 64 and payload != sha256_hex(body):
        raise WrongSignature("the body has another digest")
    path, _, query = target.partition("?")
    pairs = sorted(
        (urllib.parse.quote(name, safe="-._~"), urllib.parse.quote(value, safe="-._~"))
        for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True)
    )
    canonical = "\n".join([
        method,
        urllib.parse.quote(urllib.parse.unquote(path), safe="/-._~"),
        "&".join(f"{name}={value}" for name, value in pairs),
        "".join(f"{name}:{' '.join(fields[name].split())}\n" for name in signed),
        ";".join(signed),
        payload,
    ])
    scope = "/".join([date, region, service, end])
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, sha256_hex(canonical.encode())])
    made = ("AWS4" + SECRET_KEY).encode()
    for part in [date, region, service, end, text]:
        made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    if not hmac.compare_digest(made.hex(), parameters["Signature"]):
        raise WrongSignature(f"the signature is not that of\n{canonical}")


class Store(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """One object, as S3 serves it."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, tls, file, checksum, etag):
        super().__init__(("127.0.0.1", 0), Handler)
        self.tls, self.file, self.checksum, self.etag = tls, file, checksum, etag
        self.size = os.path.getsize(file)
        self.lock, self.requests, self.refused, self.sent = threading.Lock(), [], [], 0

    def get_request(self):
        connection, address = self.socket.accept()
        # The handshake is the connection's thread's matter.
        return self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request, client_address):
        pass  # Connections that end in the middle are no fault here.

    def marks(self):
        with self.lock:
            return len(self.requests), self.sent


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_body):
        store = self.server
        fields = {name.lower(): value for name, value in self.headers.items()}
        try:
            verify(self.command, self.path, fields, b"")
        except (WrongSignature, KeyError, ValueError) as error:
            with store.lock:
                store.refused.append(f"{self.command} {self.path}: {error!r}")
            return self.end(403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        with store.lock:
            store.requests.append((self.command, fields.get("range")))
        if urllib.parse.unquote(self.path) != "/bucket/a b+c.bin":
            return self.end(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        if fields.get("if-none-match") == store.etag:
            return self.end(304, {"ETag": store.etag}, b"")
        first, last, status = 0, store.size - 1, 200
        head = {"ETag": store.etag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        # Last changed long ago, so that the object stays fresh for a while.
        head["Last-Modified"] = "Mon, 01 Jan 2024 00:00:00 GMT"
        if "range" in fields:
            start, _, stop = fields["range"].removeprefix("bytes=").partition("-")
            first, last, status = int(start), min(int(stop or last), last), 206
            head["Content-Range"] = f"bytes {first}-{last}/{store.size}"
        else:
            # As S3 has it in replies with all of an object.
            head |= {"x-amz-checksum-crc32": store.checksum, "x-amz-checksum-type": "FULL_OBJECT"}
        self.send(status, head, last - first + 1)
        if with_body:
            with open(store.file, "rb") as file:
                file.seek(first)
                left = last - first + 1
                while left:
                    piece = file.read(min(left, 1 << 20))
                    self.wfile.write(piece)
                    left -= len(piece)
                    with store.lock:
                        store.sent += len(piece)

    def send(self, status, head, length):
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def end(self, status, head, body):
        self.send(status, head, len(body))
        self.wfile.write(body)


def certificates(folder):
    """An authority, and a certificate of it for "localhost"."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, cwd=folder, capture_output=True)

    new = ["-newkey", "rsa:2048", "-nodes"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=first hour")
    openssl("req", *new, "-keyout", "store.key", "-out", "store.csr", "-subj", "/CN=store")
    with open(os.path.join(folder, "names"), "w") as file:
        file.write("subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n")
    signs = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2"]
    openssl("x509", "-req", "-in", "store.csr", *signs, "-out", "store.pem")


def object_of(path, size):
    """Writes bytes that differ everywhere; returns their SHA-256, and their CRC-32 as S3 has it."""
    digest, crc = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for _ in range(0, size, 1 << 20):
            piece = os.urandom(min(1 << 20, size - file.tell()))
            file.write(piece)
            digest.update(piece)
            crc = zlib.crc32(piece, crc)
    return digest.hexdigest(), base64.b64encode(crc.to_bytes(4, "big")).decode()


def digest_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


@contextlib.contextmanager
def node(larder, folder, store_port, size):
    secret = os.path.join(folder, "secret")
    with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(SECRET_KEY + "\n")
    config, log = os.path.join(folder, "node.toml"), os.path.join(folder, "node.log")
    with open(config, "w") as file:
        # Half of the memory is for replies on their way.
        file.write(f"""
[node]
name = "n"
listen = "127.0.0.1:0"
cache = {{ size = "{size * 2 + (64 << 20)}B" }}
[node.origin]
url = "https://localhost:{store_port}"
host = "origin"
[node.origin.tls]
ca = "{folder}/ca.pem"
[node.origin.sign]
region = "{REGION}"
access_key = "{ACCESS_KEY}"
secret_key_file = "{secret}"
[admin]
listen = "off"
""")
    subprocess.run([larder, "check", config], check=True, stdout=subprocess.DEVNULL)
    with open(log, "w") as out:
        process = subprocess.Popen([larder, "node", "--config", config, "--ready-line"], stdout=subprocess.PIPE, stderr=out)
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the node does not start: {open(log).read()}")
        yield json.loads(line)["listen"][0]
    finally:
        process.terminate()
        process.wait(timeout=DEADLINE_S)
        with open(log) as file:
            text = file.read()
            if "WARN" in text or "ERROR" in text:
                print(text, file=sys.stderr)


def by_aria2(address, path):
    url = f"http://{address}/bucket/a%20b%2Bc.bin"
    folder, name = os.path.split(path)
    split = ["-x", str(PARTS), "-s", str(PARTS), "-k", "1M", "--file-allocation=none", "--auto-file-renaming=false"]
    subprocess.run(["aria2c", "-q", "--allow-overwrite=true", *split, "-d", folder, "-o", name, url], check=True)


def by_boto3(address, path, size, unsigned):
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore import UNSIGNED
    from botocore.config import Config

    style = {"addressing_style": "path"}
    config = Config(s3=style, max_pool_connections=PARTS, signature_version=UNSIGNED if unsigned else "s3v4")
    client = boto3.client(
        "s3", endpoint_url=f"http://{address}", region_name="us-east-1", config=config,
        # Any keys: the node's signature replaces theirs.
        aws_access_key_id="anybody", aws_secret_access_key="anything",
    )
    part = -(-size // PARTS)
    transfer = TransferConfig(multipart_threshold=part, multipart_chunksize=part, max_concurrency=PARTS)
    client.download_file("bucket", "a b+c.bin", path, Config=transfer)


def until_stored(address):
    """Waits until the whole is stored: HEAD is answered from memory then."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(address)
        connection.request("GET", "/bucket/a%20b%2Bc.bin", headers={"Range": "bytes=0-0"})
        reply = connection.getresponse()
        reply.read()
        connection.close()
        if reply.headers["Cache-Status"].startswith("n; hit"):
            return
        time.sleep(0.1)
    raise SystemExit("the object is never stored")


def first_hour(larder, size, folder):
    certificates(folder)
    path = os.path.join(folder, "object")
    digest, checksum = object_of(path, size)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(os.path.join(folder, "store.pem"), os.path.join(folder, "store.key"))
    store = Store(tls, path, checksum, f'"{digest[:32]}"')
    threading.Thread(target=store.serve_forever, daemon=True).start()
    copy, failures = os.path.join(folder, "copy"), []
    clients = [
        ("aria2", by_aria2),
        ("boto3", lambda address, path: by_boto3(address, path, size, False)),
        ("boto3 without keys", lambda address, path: by_boto3(address, path, size, True)),
    ]
    for name, fetch in clients:
        # A node of its own, so that each client's first fetch misses.
        with node(larder, folder, store.server_address[1], size) as address:
            for nth in range(1, 4):
                before, begun = store.marks(), time.monotonic()
                fetch(address, copy)
                took = time.monotonic() - begun
                if nth == 1:
                    until_stored(address)
                requests, sent = (after - then for after, then in zip(store.marks(), before))
                right = digest_of(copy) == digest
                os.remove(copy)
                rate = size / took / 1e6
                print(f"{name}, fetch {nth}: {took:.2f} s, {rate:.0f} MB/s; of the store {requests} requests, {sent} bytes; "
                      f"checksum {'right' if right else 'WRONG'}")
                if not right:
                    failures.append(f"{name}, fetch {nth}: the checksum is wrong")
                if nth > 1 and requests:
                    failures.append(f"{name}, fetch {nth}: {requests} requests went to the store")
    failures += [f"refused: {refusal}" for refusal in store.refused]
    store.shutdown()
    return failures


def bytes_of(text):
    number = text.rstrip("KMGiB")
    units = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    return int(number) * units[text[len(number):]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="target/x86_64-unknown-linux-gnu/release/larder", help="the binary")
    parser.add_argument("--size", default="1GB", type=bytes_of, help="size of the object (1GB)")
    arguments = parser.parse_args()
    for tool in ["openssl", "aria2c"]:
        if not shutil.which(tool):
            raise SystemExit(f"{tool} is not installed")
    with tempfile.TemporaryDirectory(prefix="larder-store-") as folder:
        failures = first_hour(os.path.abspath(arguments.larder), arguments.size, folder)
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
