#!/usr/bin/env python3
"""What changes cost clients: reloads, upgrades, and nodes that join, leave and flap under a steady load, against the same load
undisturbed. See ../README.md.

Everything runs on this machine: nodes with a modelled store, a switch as a service has it (a master and its workers), and an
open loop of requests, whose latency counts from when each was due. The changes are spread evenly over the run, in an order
drawn from the seed.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

TARGETS = 20_000
BYTES = 4_096
BASE = ["n1", "n2", "n3", "n4"]  # always there, but for the one that flaps
SPARE = 2  # processes for nodes that join and leave
PATIENCE_S = 60


def say(text):
    print(text, file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(method, url):
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=PATIENCE_S) as reply:
        return json.load(reply)


def until(what, test):
    end = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if test():
                return
        if time.monotonic() > end:
            raise RuntimeError(f"waited too long until {what}")
        time.sleep(0.02)


class Cluster:
    def __init__(self, larder, work, policy, threads):
        self.larder, self.work, self.policy, self.threads = larder, work, policy, threads
        self.binary = work / "larder"
        self.manifest = work / "manifest.tsv"
        self.manifest.write_text("".join(f"{BYTES}\t/t{i}\n" for i in range(TARGETS)))
        self.ports = {name: free_port() for name in BASE + [f"s{i}" for i in range(SPARE)]}
        self.nodes = {}
        self.talk = open(work / "talk", "wb")
        self.port, self.admin_port = free_port(), free_port()
        self.admin = f"http://127.0.0.1:{self.admin_port}"

    def start_node(self, name):
        port = self.ports[name]
        command = [self.larder, "node", "--name", name, "--listen", f"127.0.0.1:{port}", "--manifest", self.manifest,
                   "--disk-speed", "1000", "--threads", "1", "--cache", "64MiB", "--log", "error"]
        self.nodes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self.talk)
        until(f"{name} listens", lambda: socket.create_connection(("127.0.0.1", port), 1).close() is None)

    def install(self):
        """The binary anew, as a package would: another file moved over it."""
        fresh = self.work / "larder.new"
        shutil.copy2(self.larder, fresh)
        fresh.rename(self.binary)

    def start(self):
        self.install()
        for name in self.ports:
            self.start_node(name)
        nodes = ", ".join(f'{{ name = "{name}", address = "127.0.0.1:{self.ports[name]}" }}' for name in BASE)
        config = self.work / "switch.toml"
        config.write_text(f"""[switch]
listen = "127.0.0.1:{self.port}"
policy = "{self.policy}"
process.threads = {self.threads}
nodes = [{nodes}]
[switch.health]
interval = "200ms"
[admin]
listen = "127.0.0.1:{self.admin_port}"
""")
        self.switch = subprocess.Popen([self.binary, "switch", "--config", config, "--log", "warn"],
                                       stdin=subprocess.DEVNULL, stderr=self.talk)
        until("the switch serves", lambda: ask("GET", f"{self.admin}/reload")["generation"] == 1)

    def stop(self):
        processes = [*self.nodes.values(), *([self.switch] if hasattr(self, "switch") else [])]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def state_of(self, name):
        nodes = {node["name"]: node["state"] for node in ask("GET", f"{self.admin}/nodes")}
        return nodes.get(name)

    # The changes. Each returns once it is in force.

    def reload(self, _):
        if ask("POST", f"{self.admin}/reload")["last"]["outcome"] != "done":
            raise RuntimeError("a reload was not done")

    def upgrade(self, _):
        self.install()
        before = ask("GET", f"{self.admin}/reload")["generation"]
        self.switch.send_signal(signal.SIGUSR2)
        until("the upgrade is done", lambda: ask("GET", f"{self.admin}/reload")["generation"] > before)
        if ask("GET", f"{self.admin}/reload")["last"]["by"] != "upgrade":
            raise RuntimeError("an upgrade was not done")

    def join(self, number):
        port = self.ports[f"s{number % SPARE}"]
        ask("POST", f"{self.admin}/nodes/x{number}/join?address=127.0.0.1:{port}")

    def leave(self, number):
        ask("POST", f"{self.admin}/nodes/x{number}/leave")

    def flap(self, number):
        """A node dies, is found dead, and comes back."""
        name = BASE[number % len(BASE)]
        self.nodes[name].kill()
        self.nodes[name].wait()
        until(f"{name} is down", lambda: self.state_of(name) == "down")
        self.start_node(name)
        until(f"{name} is back", lambda: self.state_of(name) == "up")


def plan(args):
    """The changes in their order: a node leaves after it has joined."""
    lots = random.Random(args.seed)
    kinds = ["reload"] * args.reloads + ["upgrade"] * args.upgrades + ["flap"] * args.flaps
    kinds += ["join"] * args.joins + ["leave"] * args.leaves
    lots.shuffle(kinds)
    joined, left, flapped, order = 0, 0, 0, []
    members = kinds.count("join"), kinds.count("leave")
    if members[1] > members[0]:
        raise SystemExit("no more nodes can leave than join")
    for kind in kinds:
        if kind in ("join", "leave"):
            # Whichever is drawn: nobody leaves who has not come, and all come in the end.
            kind = "leave" if kind == "leave" and left < joined or joined == members[0] else "join"
        if kind == "join":
            order.append((kind, joined))
            joined += 1
        elif kind == "leave":
            order.append((kind, left))
            left += 1
        else:
            order.append((kind, flapped))
            flapped += kind == "flap"
    return order


def disturb(cluster, order, seconds, took, failed):
    begun = time.monotonic()
    for at, (kind, number) in enumerate(order):
        due = begun + (at + 0.5) * seconds / len(order)
        time.sleep(max(0, due - time.monotonic()))
        start = time.monotonic()
        try:
            getattr(cluster, kind)(number)
        except (RuntimeError, OSError) as error:
            failed.append(f"{kind} {number}: {error}")
        took.setdefault(kind, []).append(time.monotonic() - start)
    late = time.monotonic() - begun - seconds
    if late > 1:
        failed.append(f"the changes took {late:.0f} s longer than the load: let it last longer")


def measure(args, order):
    """One run: what the clients saw, and how long the changes took."""
    with tempfile.TemporaryDirectory(prefix="larder-change-") as work:
        cluster = Cluster(str(pathlib.Path(args.larder).resolve()), pathlib.Path(work), args.policy, args.threads)
        took, failed = {}, []
        try:
            cluster.start()
            load = [cluster.larder, "load", f"http://127.0.0.1:{cluster.port}", "--targets", cluster.manifest,
                    "--rate", str(args.rate), "--duration", f"{args.seconds}s", "--warmup", f"{args.warmup}s",
                    "--connections", str(args.connections), "--threads", "1", "--check-sizes", "--json", "--quiet"]
            clients = subprocess.Popen(load, stdout=subprocess.PIPE, text=True)
            time.sleep(args.warmup)
            changes = threading.Thread(target=disturb, args=(cluster, order, args.seconds - args.warmup, took, failed))
            changes.start()
            report = json.loads(clients.communicate()[0])
            changes.join()
            reloads = ask("GET", f"{cluster.admin}/reload")
        except BaseException:
            say(pathlib.Path(work, "talk").read_text(errors="replace")[-4000:])
            raise
        finally:
            cluster.stop()
    latency = report["latency"]
    return {
        "requests": report["ok"] + report["failed"], "failed": report["failed"], "faults": report["faults"],
        "statuses": report["statuses"], "stale_retries": report["connections"]["stale_retries"],
        "p50_us": latency["p50_us"], "p99_us": latency["p99_us"], "p99_9_us": latency["p99_9_us"], "max_us": latency["max_us"],
        "hit_ratio": report["cache"]["hit_ratio"], "generations": reloads["generation"],
        "changes": {kind: {"count": len(all_s), "mean_s": sum(all_s) / len(all_s), "max_s": max(all_s)}
                    for kind, all_s in sorted(took.items())},
        "undone": failed, "warnings": report["warnings"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--rate", type=float, default=5_000, help="requests per second")
    parser.add_argument("--seconds", type=int, default=300, help="length of a run, its warm-up included")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--policy", default="lard-r")
    parser.add_argument("--threads", type=int, default=1, help="of the switch")
    parser.add_argument("--seed", type=int, default=1)
    for kind, count in [("reloads", 100), ("upgrades", 10), ("joins", 20), ("leaves", 20), ("flaps", 20)]:
        parser.add_argument(f"--{kind}", type=int, default=count)
    parser.add_argument("--output", "--out", help="also write the JSON here")
    args = parser.parse_args()
    order = plan(args)
    runs = {}
    for name, changes in [("undisturbed", []), ("changed", order)]:
        say(f"{name}: {len(changes)} changes in {args.seconds} s at {args.rate:.0f} requests/s")
        runs[name] = measure(args, changes)
        run = runs[name]
        say(f"  {run['requests']} requests, {run['failed']} failed {run['faults'] or ''}, {run['stale_retries']} sent again, "
            f"p50 {run['p50_us']:.0f} us, p99 {run['p99_us']:.0f} us, p99.9 {run['p99_9_us']:.0f} us")
        for undone in run["undone"]:
            say(f"  {undone}")
    result = {"schema": "larder/change/1", "settings": vars(args), "processors": os.cpu_count(), **runs}
    text = json.dumps(result, indent=2)
    print(text)
    if args.output:
        pathlib.Path(args.output).write_text(text + "\n")


if __name__ == "__main__":
    main()
