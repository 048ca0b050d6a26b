#!/usr/bin/env python3
"""Hostile clients of many kinds at one time, while ordinary clients go on and are to notice nothing. See ../README.md.

A node, and a switch before it with limits per client as docs/operate/limits.md has them; or (--at node) the node by itself. Attackers come
from addresses of their own on loopback. Watched: every answer of the ordinary clients; the memory, descriptors and threads of the
process that serves. The run fails if an ordinary request fails, that process has ended or lost a connection to a fault of its
own, descriptors or threads do not come back to what they were, or memory goes on growing.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import attacks

TARGETS = 2_000
BYTES = 2_000
LARGE = 4_000_000
KEEPALIVE_S = 5


def say(text):
    print(text, file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def certificate(work):
    key, crt, both = work / "key.pem", work / "crt.pem", work / "tls.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=a.test", "-keyout", key, "-out", crt], check=True, capture_output=True)
    both.touch(mode=0o600)
    both.write_text(crt.read_text() + key.read_text())
    return both


class Cluster:
    def __init__(self, larder, work, slow, at):
        self.clear, self.tls, self.admin, self.at = free_port(), free_port(), free_port(), at
        manifest = work / "manifest.tsv"
        manifest.write_text("".join(f"{BYTES}\t/t{i}\n" for i in range(TARGETS)) + f"{LARGE}\t/large\n")
        self.talk = open(work / "talk", "wb")
        if at == "node":
            self.processes = [self.start([larder, "node", "--config", self.node_config(work, manifest, slow)])]
        else:
            node = free_port()
            self.processes = [self.start([larder, "node", "--name", "n", "--listen", f"127.0.0.1:{node}", "--manifest", manifest,
                                          "--disk-speed", "1000", "--cache", "256MiB", "--log", "error"])]
            self.processes.append(self.start([larder, "switch", "--config", self.switch_config(work, node, slow)]))
        end = time.monotonic() + 30
        while True:
            try:
                if ask(self, "/t1") == BYTES:
                    break
            except OSError:
                pass
            if time.monotonic() > end:
                raise RuntimeError(f"the {at} does not serve:\n{(work / 'talk').read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        served_by = self.processes[-1].pid
        if at == "switch":
            served_by = int(pathlib.Path(f"/proc/{served_by}/task/{served_by}/children").read_text().split()[0])
        self.worker = served_by

    def node_config(self, work, manifest, slow):
        config = work / "node.toml"
        config.write_text(f"""
[node]
name = "n"
listen = "127.0.0.1:{self.clear}"
cache.size = "256MiB"
model = {{ manifest = "{manifest}", speed = 1000.0 }}
[node.tls]
listen = "127.0.0.1:{self.tls}"
certificates = "{certificate(work)}"
[node.limits]
head_timeout = "5s"
idle_timeout = "{KEEPALIVE_S}s"
write_timeout = "5s"
connections_max = {slow * 2 + 10_000}
[admin]
listen = "127.0.0.1:{self.admin}"
[log]
level = "error"
""")
        return config

    def switch_config(self, work, node, slow):
        config = work / "switch.toml"
        config.write_text(f"""
[switch]
listen = "127.0.0.1:{self.clear}"
h2c = true
nodes = [{{ address = "127.0.0.1:{node}", name = "n" }}]
admission.limit = "unlimited"
policies.targets_max = 200000
[switch.tls]
listen = "127.0.0.1:{self.tls}"
certificates = "{certificate(work)}"
[switch.timeouts]
header = "5s"
keepalive = "{KEEPALIVE_S}s"
client_read = "5s"
client_write = "5s"
[switch.limits]
connections_max = {slow * 2 + 10_000}
[switch.clients]
connections_max = {max(slow // 20, 100)}
[admin]
listen = "127.0.0.1:{self.admin}"
[log]
level = "error"
""")
        return config

    def start(self, command):
        return subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=self.talk, stderr=self.talk)

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and not line.startswith("#"))

    def failures(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        if self.at == "node":
            names = ["connections_refused", "head_timeouts", "idle_timeouts", "write_timeouts", "aborted", "client_errors"]
            return {name: int(self.metric(f"larder_node_{name}_total")) for name in names}
        lines = [line for line in lines if line.startswith("larder_switch_failures_total")]
        found = {line.split('"')[1]: int(float(line.rpartition(" ")[2])) for line in lines}
        return {name: count for name, count in found.items() if count}

    def watched(self):
        status = pathlib.Path(f"/proc/{self.worker}/status").read_text()
        field = lambda name: int(next(line for line in status.splitlines() if line.startswith(name)).split()[1])
        return {"rss_kib": field("VmRSS:"), "threads": field("Threads:"), "fds": len(os.listdir(f"/proc/{self.worker}/fd"))}

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ask(cluster, target):
    connection = http.client.HTTPConnection("127.0.0.1", cluster.clear, timeout=30)
    try:
        connection.request("GET", target)
        return len(connection.getresponse().read())
    finally:
        connection.close()


class Ordinary(threading.Thread):
    """A client as there are many: kept connections, now and then a new one, every answer looked at."""

    def __init__(self, cluster, rate, seed):
        super().__init__(daemon=True)
        self.cluster, self.pause, self.random = cluster, 1 / rate, random.Random(seed)
        self.done, self.failed, self.slow_ms, self.running = 0, [], [], True

    def run(self):
        connection, left = None, 0
        while self.running:
            began = time.monotonic()
            target = f"/t{self.random.randrange(TARGETS)}"
            try:
                if left == 0:
                    connection = http.client.HTTPConnection("127.0.0.1", self.cluster.clear, timeout=30)
                    left = self.random.randrange(1, 200)
                connection.request("GET", target)
                reply = connection.getresponse()
                body = reply.read()
                if reply.status != 200 or len(body) != BYTES:
                    raise ValueError(f"{reply.status} with {len(body)} bytes")
                self.done += 1
                left -= 1
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.failed.append(f"{target}: {type(error).__name__} {error}")
                left = 0
            self.slow_ms.append((time.monotonic() - began) * 1e3)
            if left == 0 and connection:
                connection.close()
            time.sleep(max(0.0, self.pause - (time.monotonic() - began)))


def attacked(name, function, target, size, seconds, results):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    results.put((name, function(target, size, time.monotonic() + seconds)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--seconds", type=int, default=60, help="of attack")
    parser.add_argument("--slow", type=int, default=2_000, help="slow connections held at one time")
    parser.add_argument("--urls", type=int, default=10_000_000, help="distinct URLs at most")
    parser.add_argument("--rate", type=float, default=200, help="ordinary requests a second")
    parser.add_argument("--at", choices=["switch", "node"], default="switch", help="what is attacked")
    parser.add_argument("--only", help="attacks, comma-separated")
    parser.add_argument("--output", "--out", help="write the result here, JSON")
    args = parser.parse_args()
    # Slow bodies and readers, three in ten, have a connection to a node too.
    wanted = args.slow * 3 // 2 + 5_000
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        # The switch and the attackers inherit it.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, hard), max(wanted, hard)))
    except ValueError:
        sys.exit(f"{hard} open files are allowed, and --slow {args.slow} needs {wanted}: ulimit -n {wanted}, as root")
    known = [attack[0] for attack in attacks.ATTACKS]
    if unknown := [name for name in (args.only or "").split(",") if name and name not in known]:
        sys.exit(f"--only: unknown attack {', '.join(unknown)} (known: {', '.join(known)})")
    chosen = [attack for attack in attacks.ATTACKS if not args.only or attack[0] in args.only.split(",")]
    with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
        cluster = Cluster(shutil.which(args.larder) or args.larder, pathlib.Path(directory), args.slow, args.at)
        try:
            sys.exit(run(cluster, chosen, args))
        finally:
            cluster.stop()


def run(cluster, chosen, args):
    ordinary = [Ordinary(cluster, args.rate / 8, seed) for seed in range(8)]
    for client in ordinary:
        client.start()
    time.sleep(3)
    before = cluster.watched()
    say(f"before: {before}")
    target = {"clear": ("127.0.0.1", cluster.clear), "tls": ("127.0.0.1", cluster.tls), "h2c": args.at == "switch"}
    results, workers = multiprocessing.Queue(), []
    for name, function, share, times in chosen:
        size = (int(args.slow * share) if share else args.urls) // times
        for _ in range(times):
            workers.append(multiprocessing.Process(target=attacked, args=(name, function, target, size, args.seconds, results)))
            workers[-1].start()
    samples, end, wrong = [], time.monotonic() + args.seconds, []
    try:
        while time.monotonic() < end:
            time.sleep(1)
            samples.append(cluster.watched())
            if len(samples) % 15 == 0:
                say(f"{len(samples)} s: {samples[-1]}, {sum(client.done for client in ordinary)} ordinary requests, "
                    f"{sum(len(client.failed) for client in ordinary)} failed")
    except OSError:
        wrong.append("the process that serves has ended")
    for worker in workers:
        worker.join(60)
        if worker.is_alive():
            worker.kill()
    done = {}
    while not results.empty():
        name, count = results.get()
        done[name] = done.get(name, 0) + count
    after = settled(cluster, before) if not wrong else {}
    for client in ordinary:
        client.running = False
    for client in ordinary:
        client.join(40)
    failed = [what for client in ordinary for what in client.failed]
    times = sorted(time_ms for client in ordinary for time_ms in client.slow_ms)
    if failed:
        wrong.append(f"{len(failed)} ordinary requests failed, the first: {failed[0]}")
    if not wrong:
        wrong += judge(cluster, before, samples, after)
    peak = {key: max(sample[key] for sample in samples) for key in before} if samples else {}
    report = {
        "at": args.at, "seconds": args.seconds, "slow": args.slow, "attacks": done, "ordinary": sum(client.done for client in ordinary),
        "failed": len(failed), "ordinary_ms_p50": round(statistics.median(times), 2),
        "ordinary_ms_p99": round(times[int(len(times) * 0.99)], 2), "before": before, "peak": peak, "after": after,
        "answers": cluster.failures() if after else {}, "wrong": wrong,
    }
    print(json.dumps(report, indent=1))
    if args.output:
        pathlib.Path(args.output).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong else 0


def settled(cluster, before):
    """What the switch holds once the attackers have gone."""
    end = time.monotonic() + 3 * KEEPALIVE_S + 15
    while True:
        after = cluster.watched()
        if after["fds"] <= before["fds"] + 64 or time.monotonic() > end:
            return after
        time.sleep(0.5)


def judge(cluster, before, samples, after):
    wrong = []
    if cluster.at == "switch" and cluster.metric("larder_switch_panics_total"):
        wrong.append("a connection was lost to a fault in the switch")
    if cluster.at == "switch" and cluster.metric("larder_switch_generation") != 1:
        wrong.append("the switch's worker was replaced")
    if after["fds"] > before["fds"] + 64:
        wrong.append(f"descriptors do not come back: {before['fds']} before, {after['fds']} after")
    if after["threads"] > before["threads"] + 2 and after["threads"] > max(sample["threads"] for sample in samples[:10]):
        wrong.append(f"threads do not come back: {before['threads']} before, {after['threads']} after")
    quarter = len(samples) // 4
    if quarter >= 5:
        mean = lambda part: statistics.mean(sample["rss_kib"] for sample in part)
        second, last = mean(samples[quarter:2 * quarter]), mean(samples[-quarter:])
        if last > second * 1.2 + 32 * 1024:
            wrong.append(f"memory goes on growing: {second:.0f} KiB in the second quarter, {last:.0f} KiB in the last")
    return wrong


if __name__ == "__main__":
    main()
