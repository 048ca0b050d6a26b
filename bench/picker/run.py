#!/usr/bin/env python3
"""The endpoint picker: requests per second and CPU time, three replicas of which one is killed, and rolling replacements.

    cargo build --release -p larder && cargo build --release -p larder-picker --example gateway
    bench/picker/run.py [rate] [replicas] [rolling]

`rate`: the picker on both processors with headers of 1 KB, without TLS. The gateway runs on the same processors, so the CPU time of
the picker is the figure to compare. `replicas`: the share of requests that an endpoint has in memory, before and after a replica is
killed. `rolling`: 1,000 endpoints, of which 100 are replaced one after the other while requests are sent; keys that have another
endpoint afterwards, over those whose endpoint was replaced.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

TICKS = os.sysconf("SC_CLK_TCK")


class Picker:
    """A picker that ends with this program."""

    def __init__(self, larder, folder, name, nodes, peers=None):
        config = folder / f"{name}.toml"
        lines = ['[picker]', 'listen = "127.0.0.1:0"', 'tls.enabled = false', '[[picker.discover]]', f'file = "{nodes}"',
                 'period = "100ms"', '[admin]', 'listen = "127.0.0.1:0"']
        if peers:
            own, secret, seeds = peers
            lines += ['[picker.peers]', f'name = "{name}"', f'listen = "{own}"', f'secret = "{secret}"', f'seeds = {json.dumps(seeds)}']
        config.write_text("\n".join(lines) + "\n")
        self.process = subprocess.Popen([larder, "picker", "--config", config, "--ready-line", "--exit-with-stdin", "--log", "error"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready = json.loads(self.process.stdout.readline())
        self.address, self.admin = ready["listen"][0], ready["admin"]

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mb(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024

    def page(self, path):
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=10) as reply:
            return json.load(reply)

    def kill(self):
        self.process.kill()
        self.process.wait()


def wait_for(what, probe, limit=60):
    deadline = time.monotonic() + limit
    while not probe():
        if time.monotonic() > deadline:
            sys.exit(f"not within {limit} s: {what}")
        time.sleep(0.02)


def write_nodes(path, numbers):
    """Writes the endpoints, each with an address of its own."""
    lines = "".join(f'{{ name = "n{number}", address = "10.{number >> 16}.{number >> 8 & 255}.{number & 255}:80" }},\n' for number in numbers)
    new = path.with_suffix(".new")
    new.write_text(f"nodes = [\n{lines}]\n")
    new.rename(path)


def rate(args, folder):
    nodes = folder / "nodes.toml"
    write_nodes(nodes, range(1, 17))
    runs = []
    for _ in range(args.rounds):
        picker = Picker(args.larder, folder, "rate", nodes)
        subprocess.run([args.gateway, "rate", "2", "64", "1024", picker.address], check=True, capture_output=True)
        before = picker.cpu_s()
        ran = subprocess.run([args.gateway, "rate", str(args.seconds), "64", "1024", picker.address], check=True, capture_output=True, text=True)
        figures = json.loads(ran.stdout)
        figures["picker_cpu_us_per_request"] = (picker.cpu_s() - before) * 1e6 / max(1, figures["requests"])
        figures["memory_mb"] = picker.memory_mb()
        picker.kill()
        runs.append(figures)
    runs.sort(key=lambda run: run["picker_cpu_us_per_request"])
    median = runs[len(runs) // 2]
    print(f"rate: {median['requests_per_s']:.0f} requests/s, {median['picker_cpu_us_per_request']:.1f} us of CPU per request, "
          f"p50 {median['p50_us']} us, p99 {median['p99_us']} us, {median['failed']} failed, {median['memory_mb']:.0f} MB")
    return runs


def replicas(args, folder):
    nodes, secret = folder / "nodes.toml", folder / "peers.key"
    write_nodes(nodes, range(1, 17))
    subprocess.run([args.larder, "keys", "new", secret], check=True, capture_output=True)
    ports = [args.port + number for number in range(3)]
    seeds = [f"127.0.0.1:{port}" for port in ports]
    pickers = [Picker(args.larder, folder, f"p{port}", nodes, (f"127.0.0.1:{port}", secret, seeds)) for port in ports]
    wait_for("the replicas know each other", lambda: all(
        len([peer for peer in picker.page("/peers")["others"] if peer["up"]]) == 2 for picker in pickers))
    # The memories have room for a third of all keys.
    gateway = subprocess.Popen([args.gateway, "play", str(args.seconds * 4), "32", "30000", "600"] + [picker.address for picker in pickers],
                               stdout=subprocess.PIPE, text=True)
    seconds = []
    for line in gateway.stdout:
        seconds.append(json.loads(line))
        if len(seconds) == args.seconds * 2:
            pickers[0].kill()
    kill = args.seconds * 2

    def share(part):
        return 100 * sum(each["hits"] for each in part) / max(1, sum(each["requests"] for each in part))

    before, after = share(seconds[kill - args.seconds // 2:kill]), share(seconds[kill + 5:kill + 5 + args.seconds // 2])
    failed = sum(each["failed"] for each in seconds)
    print(f"replicas: {before:.2f} % in memory before, {after:.2f} % from 5 s after the kill on: {after - before:+.2f} points; {failed} failed")
    [picker.kill() for picker in pickers[1:]]
    return {"before": before, "after": after, "seconds": seconds}


def rolling(args, folder):
    nodes, keys = folder / "nodes.toml", args.keys
    members = list(range(1, 1001))
    write_nodes(nodes, members)
    picker = Picker(args.larder, folder, "rolling", nodes)

    def places():
        ran = subprocess.run([args.gateway, "place", str(keys), picker.address], check=True, capture_output=True, text=True)
        return json.loads(ran.stdout)

    places()
    before = places()
    gateway = subprocess.Popen([args.gateway, "play", "600", "8", str(keys), "1000", picker.address], stdout=subprocess.PIPE, text=True)
    gone = set()
    for number in range(100):
        # A new endpoint is ready before an old one leaves.
        left = members.pop(0)
        members.append(1001 + number)
        write_nodes(nodes, [left] + members)
        wait_for("it has joined", lambda: any(node["name"] == f"n{1001 + number}" for node in picker.page("/status")["nodes"]))
        write_nodes(nodes, members)
        wait_for("it has left", lambda: not any(node["name"] == f"n{left}" for node in picker.page("/status")["nodes"]))
        gone.add(f"10.{left >> 16}.{left >> 8 & 255}.{left & 255}:80")
    gateway.terminate()
    seconds = [json.loads(line) for line in gateway.stdout]
    after = places()
    moved = sum(old != new for old, new in zip(before, after))
    least = sum(old in gone for old in before)
    failed = sum(each["failed"] for each in seconds) + sum(place is None for place in before + after)
    print(f"rolling: {sum(each['requests'] for each in seconds)} requests, {failed} failed; {moved} of {keys} keys moved, {least} at least: "
          f"{moved / max(1, least):.3f}")
    picker.kill()
    return {"moved": moved, "least": least, "failed": failed, "seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="rate, replicas, rolling; default all")
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--gateway", default="target/release/examples/gateway")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--port", type=int, default=27_960, help="first of three ports of the replicas")
    parser.add_argument("--output", help="also write the JSON here")
    args = parser.parse_args()
    known = {"rate": rate, "replicas": replicas, "rolling": rolling}
    with tempfile.TemporaryDirectory() as folder:
        results = {part: known[part](args, pathlib.Path(folder)) for part in args.parts or known}
    if args.output:
        pathlib.Path(args.output).write_text(json.dumps(results, indent=1))


main()
