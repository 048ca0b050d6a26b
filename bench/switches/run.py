#!/usr/bin/env python3
"""Switches side by side, with real processes: hit ratio and balance with 1, 2 and 4 switches before the same nodes and
trace, and what clients see when one of two is killed under load. See README.md.

Everything runs on this machine: nodes with a modelled store and a bounded memory, switches that speak to each other over
loopback, and a closed loop of clients. Where a balancer would deal connections out by lot, the trace is: each request goes
to a switch drawn from the seed, and each switch has its share of the clients.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PATIENCE_S = 60
LINE = re.compile(r'"(?:GET|HEAD) (\S+) [^"]*" \d+ (\d+)')


def say(text):
    print(text, file=sys.stderr, flush=True)


def free_port():
    """A port free for TCP and UDP."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            with contextlib.suppress(OSError):
                udp.bind(tcp.getsockname())
                return tcp.getsockname()[1]


def ask(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
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


def trace(args, work):
    """Requests as (bytes, path), in their order."""
    log = work / "trace.log"
    subprocess.run([args.larder, "trace", "synth", args.recipe, "--scale", str(args.scale), "--seed", str(args.seed),
                    "--output", log], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = (LINE.search(line) for line in log.read_text().splitlines())
    requests = [(int(match[2]), match[1]) for match in found if match]
    return requests[: args.requests]


class Cluster:
    def __init__(self, args, work, manifest, policy, switches):
        self.args, self.work, self.policy, self.count = args, work, policy, switches
        self.manifest = manifest
        self.processes, self.switches = [], []
        self.talk = open(work / f"talk-{policy}-{switches}", "wb")
        self.node_ports = [free_port() for _ in range(args.nodes)]
        self.ports = [(free_port(), free_port(), free_port()) for _ in range(switches)]
        self.secret = work / "switches.key"
        if not self.secret.exists():
            subprocess.run([args.larder, "keys", "new", self.secret], check=True, stdout=subprocess.DEVNULL)

    def start(self):
        for number, port in enumerate(self.node_ports):
            command = [self.args.larder, "node", "--name", f"n{number}", "--listen", f"127.0.0.1:{port}", "--manifest",
                       self.manifest, "--disk-speed", str(self.args.disk_speed), "--threads", "1", "--cache",
                       str(self.memory), "--log", "error"]
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self.talk))
        for port in self.node_ports:
            until("a node listens", lambda: socket.create_connection(("127.0.0.1", port), 1).close() is None)
        self.switches = [self.start_switch(at) for at in range(self.count)]
        for at in range(self.count):
            until("a switch serves", lambda: ask(f"{self.admin(at)}/status"))
        self.until_joined()

    def start_switch(self, at):
        listen, admin, peers = self.ports[at]
        nodes = ", ".join(f'{{ name = "n{n}", address = "127.0.0.1:{port}" }}' for n, port in enumerate(self.node_ports))
        seeds = ", ".join(f'"127.0.0.1:{peers}"' for _, _, peers in self.ports)
        config = self.work / f"switch{at}.toml"
        beside = f"""[switch.switches]
name = "s{at}"
listen = "127.0.0.1:{peers}"
secret = "{self.secret}"
seeds = [{seeds}]
""" if self.count > 1 else ""
        config.write_text(f"""[switch]
listen = "127.0.0.1:{listen}"
policy = "{self.policy}"
process.threads = 1
nodes = [{nodes}]
{beside}[admin]
listen = "127.0.0.1:{admin}"
""")
        command = [self.args.larder, "switch", "--one-process", "--config", config, "--log", "warn"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self.talk)

    def admin(self, at):
        return f"http://127.0.0.1:{self.ports[at][1]}"

    def until_joined(self):
        for at in range(self.count if self.count > 1 else 0):
            until("all switches hear each other", lambda: sum(
                other["up"] and not other["unknown"] for other in ask(f"{self.admin(at)}/switches")["others"]
            ) == self.count - 1)

    def load(self, at, part, clients, requests=None):
        """Clients of one switch, which ask for a part of the trace."""
        path = self.work / f"part{at}.tsv"
        path.write_text("".join(f"{size}\t{target}\n" for size, target in part))
        command = [self.args.larder, "load", f"http://127.0.0.1:{self.ports[at][0]}", "--host", "www.example.org", "--targets",
                   path, "--closed", str(clients), "--threads", "1", "--check-sizes", "--json", "--quiet", "--warmup",
                   str(self.args.warmup)]
        if requests:
            command += ["--requests", str(requests)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.talk, text=True)

    def stop(self):
        for process in self.switches + self.processes:
            process.terminate()
        for process in self.switches + self.processes:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def deal(requests, switches, seed):
    lots = random.Random(seed)
    parts = [[] for _ in range(switches)]
    for request in requests:
        parts[lots.randrange(switches)].append(request)
    return parts


def together(reports, nodes):
    """What the clients of all switches saw."""
    hits = sum(report["cache"]["hits"] for report in reports)
    misses = sum(report["cache"]["misses"] for report in reports)
    each = dict.fromkeys([f"n{n}" for n in range(nodes)], 0)
    for report in reports:
        for node in report["nodes"]:
            each[node["name"]] = each.get(node["name"], 0) + node["requests"]
    mean = sum(each.values()) / len(each)
    return {
        "requests": sum(report["ok"] for report in reports), "failed": sum(report["failed"] for report in reports),
        "hit_ratio": hits / (hits + misses), "imbalance": max(each.values()) / mean, "by_node": each,
        "by_switch": [report["ok"] for report in reports],
        "p99_us": max(report["latency"]["p99_us"] for report in reports),
    }


def side_by_side(args, work, manifest, requests, policy, switches):
    cluster = Cluster(args, work, manifest, policy, switches)
    cluster.memory = args.memory
    try:
        cluster.start()
        parts = deal(requests, switches, args.seed)
        loads = [cluster.load(at, part, args.clients // switches) for at, part in enumerate(parts)]
        reports = [json.loads(load.communicate()[0]) for load in loads]
        result = together(reports, args.nodes)
        if switches > 1:
            result["switches"] = [ask(f"{cluster.admin(at)}/switches")["sets"] for at in range(switches)]
        return result
    except BaseException:
        say((work / f"talk-{policy}-{switches}").read_text(errors="replace")[-4000:])
        raise
    finally:
        cluster.stop()


def killed(args, work, manifest, requests):
    """One of two switches is killed under load, and started again."""
    cluster = Cluster(args, work, manifest, "lard-r", 2)
    cluster.memory = args.memory
    try:
        cluster.start()
        parts = deal(requests, 2, args.seed)
        loads = [cluster.load(at, part, args.clients // 2) for at, part in enumerate(parts)]
        time.sleep(args.kill_after)
        survivor = f"{cluster.admin(0)}/switches"
        outstanding = ask(f"{cluster.admin(1)}/status")["outstanding"]
        begun = time.monotonic()
        cluster.switches[1].kill()
        cluster.switches[1].wait()
        until("the dead one is given up", lambda: not ask(survivor)["others"])
        given_up = time.monotonic() - begun
        left = ask(survivor)["elsewhere"]
        before = ask(f"{cluster.admin(0)}/status")["targets"]
        begun = time.monotonic()
        cluster.switches[1] = cluster.start_switch(1)
        until("it serves again", lambda: ask(f"{cluster.admin(1)}/status"))
        cluster.until_joined()
        until("it has caught up", lambda: ask(f"{cluster.admin(1)}/switches")["whole"]
              and ask(f"{cluster.admin(1)}/status")["targets"] >= before)
        caught_up = time.monotonic() - begun
        reports = [json.loads(load.communicate()[0]) for load in loads]
        return {
            "survivor": {"ok": reports[0]["ok"], "failed": reports[0]["failed"], "faults": reports[0]["faults"],
                         "p99_us": reports[0]["latency"]["p99_us"], "max_us": reports[0]["latency"]["max_us"]},
            "killed": {"ok": reports[1]["ok"], "failed": reports[1]["failed"], "outstanding": outstanding},
            "given_up_s": given_up, "load_left": left, "targets": before, "caught_up_s": caught_up,
        }
    except BaseException:
        say((work / "talk-lard-r-2").read_text(errors="replace")[-4000:])
        raise
    finally:
        cluster.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--recipe", default="rice-like")
    parser.add_argument("--scale", type=float, default=0.05)
    parser.add_argument("--requests", type=int, default=120_000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--memory", default="5MiB", help="of each node")
    parser.add_argument("--disk-speed", type=float, default=30, help="of the modelled disk, 1 being one of 1998")
    parser.add_argument("--clients", type=int, default=64, help="of all switches together")
    parser.add_argument("--policies", default="wrr,lard,lard-r")
    parser.add_argument("--switches", default="1,2,4")
    parser.add_argument("--warmup", type=float, default=0.33)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-after", type=float, default=4.0, help="seconds under load before the kill")
    parser.add_argument("--output", "--out", help="also write the JSON here")
    args = parser.parse_args()
    args.larder = str(pathlib.Path(args.larder).resolve())
    runs = {}
    with tempfile.TemporaryDirectory(prefix="larder-switches-") as folder:
        work = pathlib.Path(folder)
        requests = trace(args, work)
        sizes = {path: size for size, path in requests}
        requests = [(sizes[path], path) for _, path in requests]
        manifest = work / "manifest.tsv"
        manifest.write_text("".join(f"{size}\t{path}\n" for path, size in sizes.items()))
        say(f"{len(requests)} requests, {len(sizes)} targets, {sum(sizes.values()) / 1e6:.0f} MB, "
            f"{args.nodes} nodes of {args.memory}")
        for policy in args.policies.split(","):
            for switches in map(int, args.switches.split(",")):
                run = runs[f"{policy} {switches}"] = side_by_side(args, work, manifest, requests, policy, switches)
                say(f"{policy:8} {switches} switches: hits {100 * run['hit_ratio']:.2f} %, imbalance {run['imbalance']:.3f}, "
                    f"{run['failed']} failed, requests by switch {run['by_switch']}")
        kill = killed(args, work, manifest, requests)
        say(f"killed one of two: the other's clients {kill['survivor']['ok']} ok, {kill['survivor']['failed']} failed; its own "
            f"{kill['killed']['failed']} failed; given up after {kill['given_up_s']:.1f} s, load left {kill['load_left']}; "
            f"caught up {kill['targets']} targets in {kill['caught_up_s']:.1f} s")
    result = {"schema": "larder/switches/1", "settings": vars(args), "processors": os.cpu_count(), "runs": runs, "kill": kill}
    text = json.dumps(result, indent=2)
    print(text)
    if args.output:
        pathlib.Path(args.output).write_text(text + "\n")


if __name__ == "__main__":
    main()
