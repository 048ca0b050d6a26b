#!/usr/bin/env python3
"""Page loads over HTTP/2 by slow clients: every reply must be whole.

Starts a node with a modelled store and a switch before it. Many clients load pages at one time, each over a connection of its own,
and each takes its replies at a fixed rate. All objects of a page are requested at once. The switch has short deadlines, so that a
client which is slow and honest would be cut off if they applied to the wrong thing. The run fails if a reply is short, missing or no
200.
"""

import argparse
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from attacks import HTTP2_PREFACE, WINDOW_MAX, frame
from run import free_port

TICKS_PER_S = 20


def request(stream, path):
    path = path.encode()
    return frame(1, 5, stream, b"\x82\x86\x04" + bytes([len(path)]) + path + b"\x41\x01a")


class Page:
    """One page load."""

    def __init__(self, address, objects, rate):
        self.due = {1 + 2 * at: length for at, (_, length) in enumerate(objects)}
        self.wrong, self.allowance, self.per_tick = None, 0, rate // TICKS_PER_S
        self.header, self.left, self.frame = b"", 0, None
        self.started = time.monotonic()
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        self.socket.settimeout(10)
        self.socket.connect(address)
        settings = frame(4, 0, 0, b"\0\x04" + WINDOW_MAX.to_bytes(4, "big"))
        window = frame(8, 0, 0, (WINDOW_MAX - 65_535).to_bytes(4, "big"))
        asks = b"".join(request(1 + 2 * at, path) for at, (path, _) in enumerate(objects))
        self.socket.sendall(HTTP2_PREFACE + settings + window + asks)
        self.socket.setblocking(False)

    def tick(self):
        """Reads what the rate allows. Returns true at the end of the page."""
        self.allowance = min(self.allowance + self.per_tick, 4 * self.per_tick)
        while self.allowance > 0 and self.wrong is None and self.due:
            try:
                read = self.socket.recv(self.allowance)
            except BlockingIOError:
                break
            except OSError as error:
                read, self.wrong = b"", f"{type(error).__name__}: {len(self.due)} replies are not whole"
            if not read:
                self.wrong = self.wrong or f"closed: {len(self.due)} replies are not whole"
                break
            self.allowance -= len(read)
            self.take(read)
        return self.wrong is not None or not self.due

    def take(self, data):
        at = 0
        while at < len(data):
            if self.left == 0:
                need = 9 - len(self.header)
                self.header += data[at : at + need]
                at += need
                if len(self.header) < 9:
                    return
                self.left = int.from_bytes(self.header[:3], "big")
                self.frame = self.header[3], self.header[4], int.from_bytes(self.header[5:], "big")
                self.header = b""
                self.begin(self.left)
                continue
            if self.frame[0] == 1 and self.frame[2] in self.due and data[at] not in (0x88, 0x20):
                self.wrong = f"stream {self.frame[2]}: no 200"
                return
            skipped = min(self.left, len(data) - at)
            self.left -= skipped
            at += skipped
            if self.frame[0] == 1 and self.left:
                self.frame = (9, *self.frame[1:])

    def begin(self, length):
        kind, flags, stream = self.frame
        if kind == 4 and not flags & 1:
            self.socket.send(frame(4, 1, 0, b""))
        elif kind in (3, 7) and self.due:
            self.wrong = f"frame {kind}: {len(self.due)} replies are not whole"
        elif kind == 0:
            self.due[stream] -= length
            if flags & 1:
                if self.due[stream]:
                    self.wrong = f"stream {stream}: {self.due[stream]} bytes are missing"
                del self.due[stream]


def start(larder, work, objects):
    manifest = work / "manifest.tsv"
    manifest.write_text("".join(f"{length}\t{path}\n" for path, length in objects))
    node, clear = free_port(), free_port()
    config = work / "switch.toml"
    config.write_text(f"""
[switch]
listen = "127.0.0.1:{clear}"
h2c = true
nodes = [{{ address = "127.0.0.1:{node}", name = "n" }}]
admission.limit = "unlimited"
[switch.timeouts]
header = "2s"
keepalive = "2s"
client_write = "10s"
[log]
level = "error"
""")
    talk = open(work / "talk", "wb")
    run = lambda *arguments: subprocess.Popen([larder, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=talk, stderr=talk)
    processes = [run("node", "--name", "n", "--listen", f"127.0.0.1:{node}", "--manifest", manifest, "--disk-speed", 1000, "--log", "error"),
                 run("switch", "--config", config)]
    end = time.monotonic() + 30
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", clear)) == 0:
                break
        if time.monotonic() > end:
            raise RuntimeError((work / "talk").read_text(errors="replace"))
        time.sleep(0.1)
    return ("127.0.0.1", clear), processes


def load(address, objects, args):
    under_way, begun, done, wrong, times = [], 0, 0, [], []
    began = said = time.monotonic()
    tick = began
    while done < args.pages:
        while len(under_way) < args.clients and begun < args.pages:
            under_way.append(Page(address, objects, args.rate))
            begun += 1
        still = []
        for page in under_way:
            if page.tick():
                page.socket.close()
                done += 1
                times.append(time.monotonic() - page.started)
                if page.wrong:
                    wrong.append(page.wrong)
            else:
                still.append(page)
        under_way = still
        if time.monotonic() - said > 15:
            said = time.monotonic()
            print(f"{said - began:.0f} s: {done} pages, {len(wrong)} wrong", file=sys.stderr, flush=True)
        tick += 1 / TICKS_PER_S
        time.sleep(max(0.0, tick - time.monotonic()))
    times.sort()
    return {"pages": done, "objects": len(objects), "page_bytes": sum(length for _, length in objects), "clients": args.clients,
            "rate": args.rate, "seconds": round(time.monotonic() - began), "page_s_p50": round(times[len(times) // 2], 1),
            "page_s_max": round(times[-1], 1), "short": len(wrong), "first": wrong[:3]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=500, help="page loads at one time")
    parser.add_argument("--rate", type=int, default=64_000, help="bytes a second that each client takes")
    parser.add_argument("--objects", default="200000,100000,50000,30000,8000,2000", help="bytes of each object of a page")
    args = parser.parse_args()
    objects = [(f"/o{at}", int(length)) for at, length in enumerate(args.objects.split(","))]
    with tempfile.TemporaryDirectory(prefix="pages-") as directory:
        address, processes = start(shutil.which(args.larder) or args.larder, pathlib.Path(directory), objects)
        try:
            report = load(address, objects, args)
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(60)
    print(json.dumps(report, indent=1))
    sys.exit(1 if report["short"] else 0)


if __name__ == "__main__":
    main()
