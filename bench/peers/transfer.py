#!/usr/bin/env python3
"""What it costs equal nodes to move a request to the node that has its target: by relaying its reply, or by handing the
client's connection over. See ../README.md.

Nodes and clients are hosts in network namespaces. Cost is the processor time of all nodes: their processes, and the kernel
threads that take packets at their interfaces (threaded NAPI), by the scheduler's own account, so that other work on the
machine is not in it. Throughput is what clients got, and is only worth as much as the machine was free.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "handoff"))
from lab import Process, build_load, faults, machine, run, runtime_ns, say  # noqa: E402

SIZES = {"1KB": 1 << 10, "4KB": 1 << 12, "16KB": 1 << 14, "64KB": 1 << 16, "256KB": 1 << 18, "1MB": 1 << 20}
TARGETS = 16  # of each size, so that every node has some
PATIENCE_S = 30
RULE_MAX = 1.1  # of what the cheaper of handing all over and nothing (with the same programs) costs, over all rows; one row alone is noisier
# And "rule": as by default, from handoff_min on and by the requests that are expected; "stay": could be handed over, and never is.
WAYS = ["alone", "relay", "handoff"]
HANDING = ("handoff", "rule", "stay")  # with the programs that it takes, which see every packet
LEAST = {"handoff": "0B", "rule": "16KiB", "stay": "7MB"}


class Host:
    def __init__(self, lab, role, number):
        self.name, self.device, self.port = f"{lab.prefix}-{role}", f"{role}x{lab.number}", f"p-{role}"
        self.address, self.mac = f"10.9.0.{number}", f"02:00:00:09:01:{number:02x}"
        self.service = f"10.9.0.{number + 190}"
        run("ip", "netns", "add", self.name)

    def command(self, *command, cpu=None):
        # Not `ip netns exec`: it mounts a /sys of its own, without the file system that keeps BPF programs.
        return ["nsenter", f"--net=/run/netns/{self.name}", *map(str, command)]

    def ip(self, *args):
        return run("ip", "-n", self.name, *args)

    def inside(self, script, check=True):
        return run("ip", "netns", "exec", self.name, "sh", "-c", script, check=check)


class Lab:
    """A client, nodes, a bridge; removed at the end, also after a failure."""

    def __init__(self, larder, count, work):
        self.prefix, self.number = f"lp{os.getpid()}", os.getpid() % 10000
        self.larder, self.work = str(pathlib.Path(larder).resolve()), pathlib.Path(work)
        self.processes, self.hosts = [], []
        self.hub = f"{self.prefix}-hub"
        run("ip", "netns", "add", self.hub)
        run("ip", "-n", self.hub, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        run("ip", "-n", self.hub, "link", "set", "br0", "up")
        self.client = self.host("c", 2)
        self.nodes = [self.host(f"n{i}", 11 + i) for i in range(count)]
        for node in self.nodes:
            node.inside("sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
            for other in self.nodes:
                node.ip("addr", "add", f"{other.service}/32", "dev", node.device if other is node else "lo")

    def host(self, role, number):
        host = Host(self, role, number)
        self.hosts.append(host)
        run("ip", "link", "add", "name", host.device, "netns", host.name, "type", "veth", "peer", "name", host.port,
            "netns", self.hub)
        host.ip("link", "set", host.device, "address", host.mac)
        run("ip", "-n", self.hub, "link", "set", host.port, "master", "br0", "up")
        host.ip("link", "set", "lo", "up")
        host.ip("link", "set", host.device, "up")
        host.ip("addr", "add", f"{host.address}/24", "dev", host.device)
        host.inside("sysctl -qw net.ipv4.tcp_congestion_control=reno net.ipv4.ip_local_port_range='1024 65535' "
                    "net.core.somaxconn=16384 net.ipv4.tcp_max_syn_backlog=16384 net.ipv4.tcp_tw_reuse=1")
        host.inside("sysctl -qw net.ipv4.tcp_tw_reuse_delay=1", check=False)
        # Packets of MTU size on the wire, as a network card puts them there, joined by whom they are for.
        host.inside(f"ethtool -K {host.device} gro on tso off gso off; echo 1 > /sys/class/net/{host.device}/threaded")
        run("ip", "netns", "exec", self.hub, "ethtool", "-K", host.port, "gro", "off", "tso", "off", "gso", "off")
        for where, device in [(host.name, host.device), (self.hub, host.port)]:
            run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "pfifo", "limit", "20000")
        return host

    def start(self, number, way):
        node = self.nodes[number]
        name = f"{self.prefix}-n{number}"
        secret = self.work / "secret"
        if not secret.exists():
            run(self.larder, "keys", "new", str(secret))
        services = ", ".join(f'"{other.service}:80"' for other in self.nodes)
        setting = "required" if way in HANDING else "off"
        least = LEAST.get(way, "16KiB")
        peers = "" if way == "alone" else f"""[node.peers]
listen = "{node.address}:7950"
seeds = ["{self.nodes[0].address}:7950"]
secret = "{secret}"
share_above = 0.0
alone_below = 0.0
overload = 100000
large_min = "8MB"
handoff = "{setting}"
handoff_min = "{least}"
handoff_services = [{services}]
"""
        path = self.work / f"{name}.toml"
        path.write_text(f'[node]\nname = "{name}"\nlisten = "0.0.0.0:80"\nroot = "{self.work}/root"\nthreads = 1\ncache.size = "1GB"\n'
                        f'revalidate = "1h"\n{peers}[admin]\nlisten = "127.0.0.1:9900"\n[log]\nlevel = "warn"\n')
        process = Process(node, name, [self.larder, "node", "--config", path, "--ready-line"], self.work / f"{name}.log", ready=True)
        self.processes.append(process)

    def view(self, node):
        return json.loads(run(*node.command("curl", "-s", "-m", "5", "http://127.0.0.1:9900/peers")))

    def until(self, what, holds):
        end = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > end:
                raise RuntimeError(f"{what}: {[self.view(node) for node in self.nodes]}")
            time.sleep(0.05)

    def get(self, node, path):
        run(*self.client.command("curl", "-sf", "-m", "10", "-o", "/dev/null", f"http://{node.service}{path}"))

    def warm(self, way, sizes):
        """Targets are dealt out to the nodes' memories; every node knows where they are and how large."""
        count = len(self.nodes)
        if way == "alone":
            [self.get(node, path) for node in self.nodes for size in sizes for path in paths(size)]
            return
        self.until("all know one another", lambda: all(len(self.view(node)["members"]) == count - 1 for node in self.nodes))
        if way in HANDING:
            self.until("all can be handed connections", lambda: all(len(self.view(node)["handoff"]["ready"]) == count - 1 for node in self.nodes))
        for size in sizes:
            for number, path in enumerate(paths(size)):
                self.get(self.nodes[number % count], path)
        known = TARGETS * len(sizes)
        self.until("all know what others hold", lambda: all(self.view(node)["targets_known"] + self.view(node)["targets_held"] >= known for node in self.nodes))
        [self.get(node, path) for node in self.nodes for size in sizes for path in paths(size)]

    def stop(self):
        for process in self.processes:
            process.stop()
        self.processes = []

    def close(self):
        self.stop()
        # What nodes have left in the kernel for their next start.
        for base in ["/sys/fs/bpf/larder", "/sys/fs/bpf/larder-guard", "/run/larder/bpf/larder", "/run/larder/bpf/larder-guard"]:
            for left in pathlib.Path(base).glob(f"node-{self.prefix}-*"):
                shutil.rmtree(left, ignore_errors=True)
        for host in self.hosts:
            run("ip", "netns", "del", host.name, check=False)
        run("ip", "netns", "del", self.hub, check=False)

    def threads(self):
        """Of the nodes: processes, and the threads that take packets."""
        devices = {node.device for node in self.nodes}
        napi = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                name = (folder / "comm").read_text().strip()
                if name.startswith("napi/") and name[5:].rsplit("-", 1)[0] in devices:
                    napi.append(int(folder.name))
        return [pid for process in self.processes for pid in process.pids()], napi


def paths(size):
    return [f"/{size}-{number}" for number in range(TARGETS)]


def clients(lab, program, size, manner, seconds, connections):
    """The same clients at every node, each asking for all targets in turn."""
    def at(node):
        command = lab.client.command(program, node.service, 80, connections, seconds, manner, 0, "turn", *paths(size))
        return json.loads(run(*command, timeout=seconds + 60))
    with concurrent.futures.ThreadPoolExecutor(len(lab.nodes)) as pool:
        return list(pool.map(at, lab.nodes))


def measure(lab, program, size, manner, seconds, connections):
    clients(lab, program, size, manner, max(0.3, seconds / 5), connections)
    processes, napi = lab.threads()
    before = (runtime_ns(processes), runtime_ns(napi))
    results = clients(lab, program, size, manner, seconds, connections)
    after = (runtime_ns(processes), runtime_ns(napi))
    done = sum(result["done"] for result in results)
    per = 1e-3 / max(1, done)
    return {"process_us": (after[0] - before[0]) * per, "napi_us": (after[1] - before[1]) * per,
            "nodes_us": (sum(after) - sum(before)) * per, "requests_per_s": sum(r["done"] / r["seconds"] for r in results),
            "p50_us": statistics.median(r["p50_us"] for r in results), "requests": done, "faults": sum(map(faults, results))}


def moved(lab, way):
    views = [lab.view(node) for node in lab.nodes] if way != "alone" else []
    count = lambda view: (view["forwarded"], (view["handoff"] or {}).get("moved", 0))
    return tuple(map(sum, zip(*map(count, views)))) if views else (0, 0)


def named(manner):
    words = {"close": "one request a connection, announced as its last", "keep": "kept alive"}
    return words.get(manner, f"the client closes after {manner} requests")


def groups(way, manners):
    """Which manners the same nodes meet: by the rule they would expect of the second what they have learned from the first."""
    return [[manner] for manner in manners] if way == "rule" else [manners]


def table(cells, sizes, manners, ways, count):
    lines = []
    for manner in manners:
        lines += [f"{count} nodes, {named(manner)}: nodes' CPU per request, us (requests/s)", "",
                  f"| size | {' | '.join(ways)} | portability, CPU | portability, throughput |", "|---" * (len(ways) + 3) + "|"]
        for size in sizes:
            by = {way: cells.get((size, manner, way)) for way in [*WAYS, *ways]}
            fields = [f"{by[w]['nodes_us']:.1f} ({by[w]['requests_per_s']:.0f})" if by[w] else "-" for w in ways]
            if by["relay"] and by["handoff"]:
                relay, handoff = by["relay"], by["handoff"]
                fields += [f"{relay['nodes_us'] / handoff['nodes_us'] - 1:+.0%}", f"{handoff['requests_per_s'] / relay['requests_per_s'] - 1:+.0%}"]
            lines.append(f"| {size} | " + " | ".join(fields) + " |")
        lines.append("")
    return "\n".join(lines) + "PRESS's model, up to 96 nodes: handing over gains at most 16 % on a fast network, 107 % on a slow one\n"


def excess(cells, way):
    """What a way costs over the cheaper of handing all over and nothing: the geometric mean over all sizes and manners."""
    ratios = []
    for (size, manner, one), cell in cells.items():
        both = [cells.get((size, manner, other)) for other in ("stay", "handoff")]
        if one == way and all(both):
            ratios.append(cell["nodes_us"] / min(other["nodes_us"] for other in both))
    return statistics.geometric_mean(ratios) if ratios else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--ways", default=",".join(WAYS), help="of alone, relay, handoff, rule, stay")
    parser.add_argument("--manner", choices=["both", "close", "keep"], default="close")
    parser.add_argument("--requests", help="requests after which a client closes its connection, such as 1,4,16,256; in place of --manner")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=8, help="at each node")
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces and BPF need root")
    # Told to end, it still removes what it has made.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes, ways = args.sizes.split(","), args.ways.split(",")
    manners = {"both": ["close", "keep"]}.get(args.manner, [args.manner])
    if args.requests:
        manners = [str(int(requests)) for requests in args.requests.split(",")]
    rows = {}
    with tempfile.TemporaryDirectory(prefix="transfer-bench-") as work:
        pathlib.Path(work, "root").mkdir()
        for size in sizes:
            for number in range(TARGETS):
                pathlib.Path(work, "root", f"{size}-{number}").write_bytes(os.urandom(SIZES[size]))
        program = build_load(work)
        lab = Lab(args.larder, args.nodes, work)
        try:
            # Rounds are interleaved, so that whatever else the machine does meets all alike.
            for number in range(args.rounds):
                for way, together in [(way, together) for way in ways for together in groups(way, manners)]:
                    [lab.start(node, way) for node in range(args.nodes)]
                    lab.warm(way, sizes)
                    for size, manner in [(size, manner) for size in sizes for manner in together]:
                        before = moved(lab, way)
                        row = measure(lab, program, size, manner, args.seconds, args.connections)
                        after = moved(lab, way)
                        row |= {"relayed": after[0] - before[0], "handed": after[1] - before[1]}
                        rows.setdefault((size, manner, way), []).append(row)
                        say(f"round {number + 1} {way:8} {size:6} {manner:5} nodes {row['nodes_us']:8.1f} us "
                            f"(process {row['process_us']:.1f}, napi {row['napi_us']:.1f}) {row['requests_per_s']:8.0f}/s p50 "
                            f"{row['p50_us']:.0f} us, {row['relayed']} relayed, {row['handed']} handed over, faults {row['faults']}")
                    lab.stop()
        finally:
            lab.close()
    # One request a connection: what is not handed over is no measurement of handing over.
    stayed = [f"round {number + 1}, {size}: {row['relayed']} relayed, {row['handed']} handed over"
              for (size, manner, way), some in rows.items() if way == "handoff" and manner == "close"
              for number, row in enumerate(some) if row["handed"] < 0.9 * (row["handed"] + row["relayed"])]
    keys = ["nodes_us", "process_us", "napi_us", "requests_per_s", "p50_us"]
    cells = {cell: {key: statistics.median(row[key] for row in some) for key in keys} for cell, some in rows.items()}
    print(table(cells, sizes, manners, ways, args.nodes))
    if args.json:
        results = [{"size": s, "manner": m, "way": w, "rounds": rows[s, m, w], **cell} for (s, m, w), cell in cells.items()]
        pathlib.Path(args.json).write_text(json.dumps({"machine": machine(), "nodes": args.nodes, "results": results}, indent=1) + "\n")
    for one in stayed:
        say(f"not handed over: {one}")
    over = {way: excess(cells, way) for way in ("stay", "handoff", "rule")}
    say("over the cheaper of handing all over and nothing: " + ", ".join(f"{way} {x:.2f}" for way, x in over.items() if x))
    dear = (over["rule"] or 0) > RULE_MAX
    if dear:
        say("too dear: the rule")
    return 1 if stayed or dear or any(row["faults"] for some in rows.values() for row in some) else 0


if __name__ == "__main__":
    sys.exit(main())
