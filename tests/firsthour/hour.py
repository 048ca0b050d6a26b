#!/usr/bin/env python3
"""The first hour of a new user, as documented: each scene starts larder from a clean folder and asks it with common clients.

    python3 tests/firsthour/hour.py --larder target/x86_64-unknown-linux-gnu/release/larder

It needs curl, openssl and nginx, and Python's websockets (package python3-websockets). `store.py` beside it has the scene of an https
store that requires signatures. It writes into a temporary directory alone, and ends the processes that it has started. A scene
that fails says what it saw; the exit code is 1 if one has failed.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import functools
import http.server
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

DEADLINE_S = 30
SCENES = []


class Failed(Exception):
    pass


def scene(function):
    SCENES.append(function)
    return function


def expect(what, seen, wanted):
    if seen != wanted:
        raise Failed(f"{what}: {seen!r}, not {wanted!r}")


def eventually(what, holds):
    """The first true value of `holds`, which is asked until a deadline."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        value = holds()
        if value:
            return value
        time.sleep(0.02)
    raise Failed(f"not within {DEADLINE_S} s: {what}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Hour:
    """A clean folder, and the processes that a scene has started."""

    def __init__(self, larder, folder):
        self.larder, self.folder, self.processes = larder, folder, []

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(os.open(self.path(name), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def run(self, *arguments, status=0):
        """What a command prints; it has to end with this status."""
        ran = subprocess.run([self.larder, *arguments], cwd=self.folder, text=True, capture_output=True,
                             timeout=DEADLINE_S * 4, stdin=subprocess.DEVNULL)
        text = ran.stdout + ran.stderr
        if ran.returncode != status:
            raise Failed(f"larder {' '.join(arguments)} ends with {ran.returncode}, not {status}:\n{text}")
        return text

    def start(self, command, *ports):
        log = open(self.path(f"log{len(self.processes)}"), "w", encoding="utf-8")
        process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.processes.append((process, log.name))
        for port in ports:
            eventually(f"{command[0]} listens on {port}", lambda: self.alive(process, log.name) and listens(port))
        return log.name

    def alive(self, process, log):
        if process.poll() is not None:
            raise Failed(f"ended with {process.returncode}:\n{open(log, encoding='utf-8').read()}")
        return True

    def serve(self, role, config, *ports):
        """Starts a role with a config that `check` accepts; returns its log."""
        file = self.write(f"{role}.toml", config)
        self.run("check", file)
        return self.start([self.larder, role, "--config", file], *ports)

    def end(self):
        for process, _ in self.processes:
            process.terminate()
        for process, _ in self.processes:
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def curl(*arguments):
    """Status, header fields in lower case, and body of a request."""
    command = ["curl", "-s", "-k", "-i", "--max-time", str(DEADLINE_S), *arguments]
    ran = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
    head, _, body = ran.stdout.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1]) if lines[0].startswith("HTTP/") else 0
    fields = (line.split(": ", 1) for line in lines[1:] if ": " in line)
    return status, {name.lower(): value for name, value in fields}, body


def nginx(hour, names):
    """An nginx with a server for each name; returns their ports."""
    ports = [free_port() for _ in names]
    servers = ""
    for name, port in zip(names, ports):
        hour.write(f"www/{name}/index.html", f"{name} " + "x" * 4_000)
        hour.write(f"www/{name}/api/v1/who", name)
        hour.write(f"www/{name}/file.txt", "y" * 100_000)
        servers += f"server {{ listen 127.0.0.1:{port}; root {hour.path('www')}/{name}; add_header X-Server {name}; expires 1h; }}\n"
    os.makedirs(hour.path("nginx"), exist_ok=True)
    user = "user root;" if os.geteuid() == 0 else ""
    config = hour.write("nginx.conf", f"""daemon off; {user} pid {hour.path('nginx.pid')}; error_log {hour.path('nginx.err')};
events {{}}
http {{ access_log off; types {{ text/html html; text/plain txt; }} {servers} }}
""")
    hour.start(["nginx", "-p", hour.path("nginx"), "-c", config], *ports)
    return ports


def certificate(hour):
    os.makedirs(hour.path("tls"), exist_ok=True)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", hour.path("tls/a.key"), "-out", hour.path("tls/a.crt")], check=True, capture_output=True)
    os.chmod(hour.path("tls/a.key"), 0o600)
    return hour.path("tls")


@scene
def three_servers(hour):
    """Three servers, TLS, two routes, sticky, compression, redirect, access log: the config of docs/understand/compare.md."""
    a, b, c = nginx(hour, ["a", "b", "c"])
    clear, tls = free_port(), free_port()
    hour.serve("switch", f"""[switch]
listen = "127.0.0.1:{clear}"
nodes = ["127.0.0.1:{a}", "127.0.0.1:{b}", {{ address = "127.0.0.1:{c}", groups = "api" }}]
tls = {{ listen = "127.0.0.1:{tls}", certificates = "{certificate(hour)}", redirect = true }}
access_log.file = "{hour.path('access.log')}"
sticky = {{ by = "cookie" }}
compress = {{}}
[[switch.routes]]
name = "api"
path = "/api/*"
group = "api"
[admin]
listen = "off"
""", clear, tls)
    status, fields, _ = curl(f"http://localhost:{clear}/x?y=1")
    expect("the redirect", (status, fields.get("location")), (308, f"https://localhost:{tls}/x?y=1"))
    status, fields, body = curl("--http2", f"https://localhost:{tls}/")
    expect("a page", (status, len(body)), (200, 4_002))
    cookie = fields["set-cookie"].split(";")[0]
    servers = {curl("-H", f"Cookie: {cookie}", f"https://localhost:{tls}/?{i}")[1]["x-server"] for i in range(20)}
    expect("servers of one client", servers, {fields["x-server"]})
    status, fields, _ = curl("-H", "Accept-Encoding: gzip", f"https://localhost:{tls}/")
    expect("a compressed page", (status, fields.get("content-encoding")), (200, "gzip"))
    for i in range(10):
        expect("the server of /api/", curl(f"https://localhost:{tls}/api/v1/who?{i}")[1]["x-server"], "c")
    status, _, body = curl(f"http://localhost:{tls}/")
    expect("plain HTTP at the port of TLS", status, 400)
    eventually("the access log is written", lambda: hour.read("access.log").count("\n") >= 33)
    report = hour.run("plan", hour.path("access.log"), "--memory", "64MiB")
    if "requests" not in report:
        raise Failed(f"plan says of the access log: {report}")


@scene
def sixty_slow_requests_at_one_node(hour):
    """60 clients of a slow path before one node: nobody is refused."""
    class Slow(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        together = threading.Barrier(60)

        def do_GET(self):
            # Answers when all 60 are here, or not at all.
            self.together.wait(DEADLINE_S)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size, daemon_threads = 128, True

    server, port = Server(("127.0.0.1", 0), Slow), free_port()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hour.serve("switch", f'[switch]\nlisten = "127.0.0.1:{port}"\nnodes = ["127.0.0.1:{server.server_port}"]\n[admin]\nlisten = "off"\n', port)
    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        replies = list(pool.map(lambda i: curl(f"http://127.0.0.1:{port}/slow{i}")[0], range(60)))
    server.shutdown()
    expect("replies", replies, [200] * 60)


@scene
def a_thousand_websockets(hour):
    """1,000 idle WebSockets and 200 requests go to the same two nodes: all are served, and every socket still echoes."""
    import websockets

    async def echo(socket, *_):
        async for message in socket:
            await socket.send(message)

    async def main():
        a, b = nginx(hour, ["a", "b"])
        port = free_port()
        async with websockets.serve(echo, "127.0.0.1", 0) as server:
            echoes = server.sockets[0].getsockname()[1]
            hour.serve("switch", f"""[switch]
listen = "127.0.0.1:{port}"
nodes = ["127.0.0.1:{a}", "127.0.0.1:{b}", {{ address = "127.0.0.1:{echoes}", groups = "echo" }}]
[[switch.routes]]
name = "echo"
path = "/echo"
group = "echo"
[admin]
listen = "off"
""", port)
            connect = functools.partial(websockets.connect, f"ws://127.0.0.1:{port}/echo", open_timeout=DEADLINE_S)
            sockets = []
            for _ in range(20):
                sockets += await asyncio.gather(*(connect() for _ in range(50)))
            loop = asyncio.get_running_loop()
            ask = lambda i: curl(f"http://127.0.0.1:{port}/file.txt?{i}")[0]
            replies = await asyncio.gather(*(loop.run_in_executor(None, ask, i) for i in range(200)))
            # The third server has no such file, and the default route may ask it.
            expect("replies", {reply for reply in replies} <= {200, 426, 400}, True)
            for socket in sockets:
                await socket.send("x")
            expect("echoes", [await socket.recv() for socket in sockets], ["x"] * 1_000)
            await asyncio.gather(*(socket.close() for socket in sockets))

    asyncio.run(main())


@scene
def a_node_caches_logs_and_purges(hour):
    """A node before a server: the second request is a hit, the log says so, and a purge makes the third one a miss."""
    (origin,) = nginx(hour, ["a"])
    port, admin = free_port(), free_port()
    token = "0123456789abcdef0123456789abcdef"
    hour.write("token", token + "\n")
    hour.serve("node", f"""[node]
listen = "127.0.0.1:{port}"
access_log.file = "{hour.path('node.log')}"
purge_token = "{hour.path('token')}"
[node.origin]
url = "http://127.0.0.1:{origin}"
[admin]
listen = "127.0.0.1:{admin}"
""", port, admin)
    url = f"http://127.0.0.1:{port}/file.txt"
    cached = lambda: curl(url)[1]["cache-status"]
    outcomes = [("hit" if "hit" in cached() else "miss") for _ in range(2)]
    expect("the first two", outcomes, ["miss", "hit"])
    hour.run("purge", "--admin", f"127.0.0.1:{admin}", "--token", hour.path("token"), "--url", url)
    expect("after the purge", "hit" in cached(), False)
    eventually("the log has three lines", lambda: hour.read("node.log").count("\n") == 3)
    stats = hour.run("trace", "stats", hour.path("node.log")).split()
    expect("what trace reads in the log", stats[stats.index("lines") + 1], "3")


@scene
def guards(hour):
    """Passwords, networks, the size of bodies, and a route by a regular expression."""
    (server,) = nginx(hour, ["a"])
    port = free_port()
    hashed = subprocess.run(["openssl", "passwd", "-6", "secret"], capture_output=True, text=True, check=True).stdout
    users = hour.write("users", f"ann:{hashed}")
    hour.serve("switch", f"""[switch]
listen = "127.0.0.1:{port}"
nodes = ["127.0.0.1:{server}"]
guard = {{ users = "{users}", body_max = "1KiB" }}
[[switch.routes]]
name = "open"
path = "~^/file\\\\.(txt|html)$"
guard = {{}}
[[switch.routes]]
name = "closed"
path = "/closed/*"
guard = {{ deny = "127.0.0.0/8" }}
[admin]
listen = "off"
""", port)
    url = f"http://127.0.0.1:{port}"
    expect("without a password", curl(url + "/")[0], 401)
    expect("with it", curl("-u", "ann:secret", url + "/")[0], 200)
    expect("with a wrong one", curl("-u", "ann:Secret", url + "/")[0], 401)
    expect("an open path", curl(url + "/file.txt")[0], 200)
    expect("a closed network", curl(url + "/closed/a")[0], 403)
    expect("a large body", curl("-u", "ann:secret", "-d", "x" * 2_000, url + "/")[0], 413)


@scene
def mistakes_are_explained(hour):
    """check lists every mistake with its place and remedy; plan overwrites nothing."""
    file = hour.write("wrong.toml", '[switch]\nlisten = 80\nnodes = ["a.invalid:1"]\npolicy = "roundrobin"\n'
                                    'access_log.file = "/nowhere/at/all/log"\n')
    said = hour.run("check", file, status=2)
    for word in ["wrong.toml:2", "hint: ", "\"rr\""]:
        if word not in said:
            raise Failed(f"check does not say {word}:\n{said}")
    log = hour.write("log", '127.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "GET /a HTTP/1.1" 200 10\n' * 100)
    hour.run("plan", log, "--memory", "1MiB", "--write-config", hour.path("plan.toml"))
    before = hour.read("plan.toml")
    said = hour.run("plan", log, "--memory", "1MiB", "--write-config", hour.path("plan.toml"), status=2)
    expect("the file that was there", (hour.read("plan.toml") == before, "--force" in said), (True, True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="target/x86_64-unknown-linux-gnu/release/larder", help="the binary")
    parser.add_argument("scenes", nargs="*", help="only these: " + ", ".join(scene.__name__ for scene in SCENES))
    arguments = parser.parse_args()
    for tool in ["curl", "openssl", "nginx"]:
        if not shutil.which(tool):
            raise SystemExit(f"{tool} is not installed")
    failures = 0
    for play in SCENES:
        if arguments.scenes and play.__name__ not in arguments.scenes:
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="larder-hour-") as folder:
            hour, said = Hour(os.path.abspath(arguments.larder), folder), ""
            try:
                play(hour)
            except (Failed, OSError, KeyError, ValueError) as error:
                failures, said = failures + 1, f"\n    {type(error).__name__}: {error}"
            finally:
                hour.end()
        print(f"{'FAILED' if said else 'ok':6} {play.__name__} ({time.monotonic() - begun:.1f} s){said}", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
