#!/usr/bin/env python3
"""LARD's prototype experiment: nodes whose disks are slow and whose memory is small, WRR against LARD/R. See README.md.

The paper (section 6.3, figure 17) says that with six nodes LARD/R served 2.5 times the requests of WRR. It used a part of Rice's log
and does not say how much of it fitted into memory. With `--files 12000` the statement is judged: it holds if LARD/R gains 75 to 225 %,
which is the paper's gain within a half. It is not judged if the processor of nodes and clients was more than 85 % busy, because then
processors limit LARD/R and not disks. With the default of 4,000 files, which fit into the memory of six nodes, the ratio was 2.49 before
these bounds were written, and the processor was full.
"""

import argparse
import bisect
import contextlib
import json
import math
import os
import pathlib
import random
import sys
import time

from lab import FRONT_CPU, VIP, Lab, Meter, build_load, faults, load, machine, run, say
from systems import key, larder, metric, nginx_config, node_handoff

# The setting in which the paper's statement is judged, the ratio of LARD/R to WRR in the paper, and the ratios with which it holds.
PAPER_NODES, PAPER_FILES = 6, 12_000
PAPER_RATIO, RATIOS = 2.5, (1.75, 3.25)
BUSY_MAX = 0.85
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def catalogue(rng, count, mean_bytes):
    """Names and sizes: lognormal, as web objects are (sigma 1.2)."""
    sigma = 1.2
    mu = math.log(mean_bytes) - sigma * sigma / 2
    return [(f"{i // 100:03d}/{i:06d}", max(256, min(int(rng.lognormvariate(mu, sigma)), mean_bytes * 20))) for i in range(count)]


def trace(rng, names, alpha, length):
    """Paths, one a request: Zipf by a random order of the files."""
    order = names[:]
    rng.shuffle(order)
    total, sums = 0.0, []
    for rank in range(1, len(order) + 1):
        total += rank ** -alpha
        sums.append(total)
    return ["/" + order[min(bisect.bisect_left(sums, rng.random() * total), len(order) - 1)] for _ in range(length)]


class Disks:
    """One file system in memory, seen through a loop device for each node: every node reads, and caches, for itself."""

    def __init__(self, folder, objects, count):
        self.folder, self.stack = folder, contextlib.ExitStack()
        self.image, self.loops = folder / "image", []
        folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=4g", "none", str(folder))
        self.stack.callback(run, "umount", "-l", str(folder), check=False)
        try:
            self.fill(objects)
            for number in range(count):
                device = run("losetup", "-r", "-f", "--show", str(self.image)).strip()
                self.stack.callback(run, "losetup", "-d", device, check=False)
                mounted = folder.parent / f"disk{number}"
                mounted.mkdir()
                run("mount", "-o", "ro,noload,noatime", device, str(mounted))
                self.stack.callback(run, "umount", str(mounted), check=False)
                block = os.stat(device).st_rdev
                self.loops.append((mounted, f"{os.major(block)}:{os.minor(block)}"))
        except BaseException:
            self.stack.close()
            raise

    def fill(self, objects):
        total = sum(size + 4096 for _, size in objects)
        with open(self.image, "wb") as image:
            image.truncate(total * 5 // 4 + (64 << 20))
        run("mkfs.ext4", "-q", "-O", "^has_journal", "-N", str(len(objects) * 2 + 1000), str(self.image))
        mounted = self.folder / "fill"
        mounted.mkdir()
        run("mount", "-o", "loop", str(self.image), str(mounted))
        try:
            junk = os.urandom(1 << 20)
            for name, size in objects:
                path = mounted / name
                path.parent.mkdir(exist_ok=True)
                with open(path, "wb") as file:
                    while size > 0:
                        size -= file.write(junk[:size])
        finally:
            run("umount", str(mounted))

    def close(self):
        self.stack.close()


class Limits:
    """A node's memory and disk: cgroups of version 1."""

    def __init__(self, name, device, memory_bytes, iops, bps):
        self.memory, self.blkio, self.device = CGROUPS / "memory" / name, CGROUPS / "blkio" / name, device
        self.memory.mkdir()
        self.blkio.mkdir()
        (self.memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
        self.rates = {"iops": iops, "bps": bps}
        self.slow(True)

    def slow(self, on):
        for what, rate in self.rates.items():
            (self.blkio / f"blkio.throttle.read_{what}_device").write_text(f"{self.device} {rate if on else 0}")

    def enter(self, command):
        return ["sh", "-c", 'for group in "$0" "$1"; do echo $$ >"$group/cgroup.procs" || exit 1; done; shift; exec "$@"',
                self.memory, self.blkio, *command]

    def reads(self):
        for line in (self.blkio / "blkio.throttle.io_serviced").read_text().splitlines():
            fields = line.split()
            if fields[:2] == [self.device, "Read"]:
                return int(fields[2])
        return 0

    def memory_bytes(self):
        return int((self.memory / "memory.usage_in_bytes").read_text())

    def forget(self):
        with contextlib.suppress(OSError):
            (self.memory / "memory.force_empty").write_text("0")

    def close(self):
        for group in [self.memory, self.blkio]:
            for _ in range(50):
                try:
                    group.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)


def node(lab, host, number, root, limits):
    name = f"n{number}"
    home = lab.work / f"{name}-nginx"
    body = f"""aio threads=disk;
    server {{ listen {host.address}:80 backlog=16384; listen {VIP}:80 backlog=16384; root {root}; }}"""
    home.mkdir()
    config = home / "nginx.conf"
    config.write_text("thread_pool disk threads=64 max_queue=65536;\n" + nginx_config(home, body))
    server = lab.start(host, f"{name}-nginx", limits.enter(["nginx", "-e", home / "error.log", "-c", config]))
    lab.await_port(host, host.address, 80, server)
    path = lab.work / f"{name}.toml"
    path.write_text(f'[agent]\nname = "{lab.prefix}-{name}"\n{node_handoff(lab, host, name)}[log]\nlevel = "warn"\n')
    lab.start(host, f"{name}-agent", [lab.larder, "agent", "--config", path, "--ready-line"], ready=True)


def point(lab, program, nodes, limits, policy, paths, args):
    """One cluster size under one policy, from cold caches."""
    for limit in limits:
        limit.forget()
    connections = (len(nodes) - 1) * 65 + 24
    process = larder(lab, nodes, "cookie", switch=f'policy = "{policy}"\n')
    try:
        time.sleep(0.3)
        lab.pin()
        arguments = dict(address=VIP, port=80, connections=connections, keep=False, paths=[f"@{paths}"], turn=True)
        # Caches fill at full speed; then the disks become slow, and the cluster settles.
        for limit in limits:
            limit.slow(False)
        load(lab, program, seconds=args.warm, **arguments)
        for limit in limits:
            limit.slow(True)
        load(lab, program, seconds=args.settle, **arguments)
        meter = Meter(lab, [process])
        reads, before = sum(limit.reads() for limit in limits), meter.look()
        result = load(lab, program, seconds=args.seconds, **arguments)
        cost = Meter.between(before, meter.look(), result["done"])
        reads = sum(limit.reads() for limit in limits) - reads
        row = {"nodes": len(nodes), "policy": policy, "requests_per_s": result["done"] / result["seconds"],
               "mbit_per_s": result["bytes"] * 8e-6 / result["seconds"], "front_busy": cost["front_busy"],
               "front_busy_named": cost["front_named_us"] * result["done"] / 1e6 / result["seconds"],
               "front_us": cost["front_us"], "front_named_us": cost["front_named_us"], "other_busy": cost["other_busy"],
               "disk_reads_per_request": reads / max(1, result["done"]), "p50_us": result["p50_us"], "p99_us": result["p99_us"],
               "faults": faults(result), "connections": connections,
               "memory_bytes": [limit.memory_bytes() for limit in limits]}
        if metric(lab, "larder_switch_deliveries_total", mechanism="relay"):
            row["relayed"] = metric(lab, "larder_switch_deliveries_total", mechanism="relay")
        say(f"{len(nodes)} nodes {policy:7} {row['requests_per_s']:7.0f}/s {row['mbit_per_s']:6.0f} Mbit/s front "
            f"{row['front_busy']:.3f} (named {row['front_busy_named']:.3f}) other {row['other_busy']:.2f} disk reads/request "
            f"{row['disk_reads_per_request']:.2f} p50 {row['p50_us'] / 1e3:.1f} ms faults {row['faults']}")
        return row
    finally:
        lab.stop(process)
        lab.forget()
        lab.far_xdp(False)


def verdict(wrr, lard):
    """Judges the paper's statement by the results with six nodes."""
    ratio = lard["requests_per_s"] / max(1, wrr["requests_per_s"])
    said = f"with {PAPER_NODES} nodes LARD/R serves {ratio:.2f} times the requests of WRR; the paper: {PAPER_RATIO}; bounds {RATIOS[0]} to {RATIOS[1]}"
    busy = max(row["other_busy"] for row in (wrr, lard))
    if busy > BUSY_MAX:
        return f"{said}: not judged, the processor of nodes and clients was {100 * busy:.0f} % busy"
    return f"{said}: {'holds' if RATIOS[0] <= ratio <= RATIOS[1] else 'does not hold'} (their processor {100 * busy:.0f} % busy)"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--nodes", type=int, default=6, help="1 to this many")
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--mean", type=int, default=20_000, help="bytes of a file")
    parser.add_argument("--alpha", type=float, default=0.8, help="of Zipf's law")
    parser.add_argument("--memory", type=int, default=32, help="MiB of a node, page cache and server together")
    parser.add_argument("--iops", type=int, default=80, help="reads a second of a disk")
    parser.add_argument("--bps", type=int, default=20_000_000, help="bytes a second of a disk")
    parser.add_argument("--warm", type=float, default=5.0, help="seconds with fast disks")
    parser.add_argument("--settle", type=float, default=4.0, help="seconds with slow disks, before those that count")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json")
    args = parser.parse_args()
    rng = random.Random(1)
    objects = catalogue(rng, args.files, args.mean)
    rows = []
    with Lab(args.nodes, args.larder) as lab, contextlib.ExitStack() as stack:
        disks = Disks(lab.work / "disk", objects, args.nodes)
        # Servers must be gone before their file systems and limits.
        stack.callback(disks.close)
        limits = []
        for number, (_, device) in enumerate(disks.loops):
            limits.append(Limits(f"{lab.prefix}-n{number}", device, args.memory << 20, args.iops, args.bps))
            stack.callback(limits[-1].close)
        stack.callback(lambda: [process.stop() for process in reversed(lab.processes)])
        program = build_load(lab.work)
        paths = lab.work / "trace"
        paths.write_text("\n".join(trace(rng, [name for name, _ in objects], args.alpha, 200_000)) + "\n")
        for number, host in enumerate(lab.nodes):
            node(lab, host, number, disks.loops[number][0], limits[number])
        named = [(f"n{i}", host) for i, host in enumerate(lab.nodes)]
        for count in range(1, args.nodes + 1):
            for policy in ["wrr", "lard-r"]:
                rows.append(point(lab, program, named[:count], limits[:count], policy, paths, args))
    total = sum(size for _, size in objects)
    print(f"{args.files} files, {total / 1e6:.0f} MB; {args.memory} MiB and {args.iops} reads/s a node\n")
    print("| nodes | WRR req/s | LARD/R req/s | ratio | WRR reads/req | LARD/R reads/req | WRR front | LARD/R front | LARD/R Mbit/s |\n"
          + "|---" * 9 + "|")
    for wrr, lard in zip(rows[::2], rows[1::2]):
        print(f"| {wrr['nodes']} | {wrr['requests_per_s']:.0f} | {lard['requests_per_s']:.0f} | "
              f"{lard['requests_per_s'] / max(1, wrr['requests_per_s']):.2f} | {wrr['disk_reads_per_request']:.2f} | "
              f"{lard['disk_reads_per_request']:.2f} | {wrr['front_busy_named']:.3f} | {lard['front_busy_named']:.3f} | {lard['mbit_per_s']:.0f} |")
    for wrr, lard in zip(rows[::2], rows[1::2]):
        if (wrr["nodes"], args.files) == (PAPER_NODES, PAPER_FILES):
            print(f"\n{verdict(wrr, lard)}")
    if args.json:
        setup = {k: v for k, v in vars(args).items() if k not in ("larder", "json")}
        pathlib.Path(args.json).write_text(json.dumps({"machine": machine(), "setup": setup, "bytes": total, "results": rows},
                                                      indent=1) + "\n")
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
