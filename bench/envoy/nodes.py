"""Nodes with a modelled disk and processor, the requests of a log, and one run of a policy."""

import http.client
import json
import pathlib
import re
import select
import subprocess
import threading
import time

from proxy import Failure, Page, end

HOST = "www.example.org"
LINE = re.compile(r'"GET (\S+) [^"]*" 200 (\d+)')
TARGET_BYTES_MAX = 4096
ALLOWED = frozenset(b"-._~!$&'()*+,;=:@/?%" + bytes(range(48, 58)) + bytes(range(65, 91)) + bytes(range(97, 123)))
SAMPLE_S, NODE_SAMPLE_S = 0.1, 1.0
IN_FLIGHT = re.compile(r"^larder_node_in_flight\S* ([\d.e+-]+)$", re.MULTILINE)
BUSY = re.compile(r"^larder_node_(?:cpu|disk)_busy_seconds_total\S* ([\d.e+-]+)$", re.MULTILINE)


def request_target(name):
    """Returns the target as `larder load` sends it."""
    path = name if name.startswith("/") else "/" + name
    return "".join(chr(byte) if byte in ALLOWED else f"%{byte:02X}" for byte in path.encode())


class Log:
    """The requests of a log, as files for the load and for the nodes."""

    def __init__(self, larder, path, limit, work):
        if not pathlib.Path(path).is_file():
            raise Failure(f"cannot read {path}: there is no such log")
        self.name = pathlib.Path(path).name.partition(".")[0]
        plain = work / f"{self.name}.log"
        done = subprocess.run([larder, "trace", "convert", path, "--output", plain], capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"cannot read {path}: {done.stderr.strip()}")
        requests, self.sizes = [], {}
        with open(plain, encoding="utf-8", errors="replace") as lines:
            for match in filter(None, map(LINE.search, lines)):
                target, size = request_target(match[1]), int(match[2])
                if size and len(target) <= TARGET_BYTES_MAX:
                    requests.append(target)
                    self.sizes[target] = max(size, self.sizes.get(target, 0))
                    if len(requests) == limit:
                        break
        plain.unlink()
        if len(requests) < 3:
            raise Failure(f"{path} has {len(requests)} requests that can be replayed (GET, status 200, with a body)")
        self.requests, self.working_set = len(requests), sum(self.sizes.values())
        self.targets, self.manifest = work / f"{self.name}.targets", work / f"{self.name}.manifest"
        self.targets.write_text("".join(f"{self.sizes[target]}\t{target}\n" for target in requests))
        self.manifest.write_text("".join(f"{size}\t{target}\n" for target, size in self.sizes.items()))


class Nodes:
    """The nodes of one run. They end when their stdin is closed, also if this script is killed."""

    def __init__(self, args, log, memory):
        self.processes, self.ports, self.pages = [], [], []
        try:
            for number in range(args.nodes):
                command = [args.larder, "node", "--name", f"n{number}", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
                           "--manifest", log.manifest, "--disk-speed", str(args.speed), "--processor-speed", str(args.speed),
                           "--cache", str(memory), "--cache-kind", args.cache_kind, "--threads", "1", "--log", "error",
                           "--ready-line", "--exit-with-stdin"]
                self.processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for number, process in enumerate(self.processes):
                line = process.stdout.readline() if select.select([process.stdout], [], [], 20)[0] else b""
                if not line:
                    raise Failure(f"node n{number} did not start; see its message above")
                ready = json.loads(line)
                self.ports.append(int(ready["listen"][0].rpartition(":")[2]))
                self.pages.append(Page(ready["admin"]))
        except BaseException:
            self.stop()
            raise

    def busy_s(self):
        """Returns the busy time of each node: of its processor and of its disk."""
        return [sum(map(float, BUSY.findall(page.read("/metrics")[1].decode()))) for page in self.pages]

    def in_flight(self):
        """Returns the number of requests in progress at each node, by its port."""
        def value(page):
            return int(float(IN_FLIGHT.search(page.read("/metrics")[1].decode())[1]))
        return {port: value(page) for port, page in zip(self.ports, self.pages)}

    def stop(self):
        for page in self.pages:
            page.close()
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                end(process)
            process.stdout.close()


class Sampler(threading.Thread):
    """Samples the active requests of each node at the proxy, the busy time of the nodes and that of the machine."""

    def __init__(self, proxy, nodes):
        super().__init__(daemon=True)
        self.proxy, self.nodes = proxy, nodes
        self.ended = threading.Event()
        self.begun, self.loads, self.busy, self.machine = None, [], [], []

    def run(self):
        due = 0.0
        while not self.ended.wait(SAMPLE_S):
            try:
                active, now = self.proxy.active(self.nodes), time.monotonic()
                if self.begun is None:
                    if not any(active.values()):
                        continue
                    self.begun = now
                self.loads.append((now, [active.get(port, 0) for port in self.nodes.ports]))
                if now >= due:
                    self.busy.append((now, self.nodes.busy_s()))
                    self.machine.append((now, machine_cpu()))
                    due = now + NODE_SAMPLE_S
            except (OSError, http.client.HTTPException, ValueError):
                continue  # The next sample shows whether the process is gone.

    def window(self, timeline):
        """Returns, over the measured part, the mean load and the busy time of each node, the share of busy processors, and the
        number of samples."""
        begin = (self.begun or 0) + (timeline["measured_from_s"] or 0)
        finish = (self.begun or 0) + (timeline["dry_from_s"] or float("inf"))
        def within(samples):
            return [sample for at, sample in samples if begin <= at <= finish]
        loads, busy, machine = within(self.loads), within(self.busy), within(self.machine)
        mean = [sum(column) / len(loads) for column in zip(*loads)]
        spent = [last - first for first, last in zip(busy[0], busy[-1])] if len(busy) > 1 else []
        share = None
        if len(machine) > 1 and machine[-1][1] > machine[0][1]:
            share = (machine[-1][0] - machine[0][0]) / (machine[-1][1] - machine[0][1])
        return mean, spent, share, len(loads)


def machine_cpu():
    """Returns the busy time and the whole time of all processors, in ticks."""
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def imbalance(values):
    """Returns the largest value over the mean; None without values."""
    return max(values) * len(values) / sum(values) if values and sum(values) else None


def run(args, work, log, memory, policy, start):
    """Replays a log by a policy with fresh nodes and a fresh proxy. Returns the figures of the measured part. `start` takes the
    arguments, a folder, the policy and the addresses of the nodes, and returns the proxy."""
    folder = work / f"run-{time.monotonic_ns()}"
    nodes = Nodes(args, log, memory)
    proxy = load = sampler = None
    try:
        hosts = [("127.0.0.1", port) for port in nodes.ports]
        proxy = start(args, folder, policy, hosts)
        sampler = Sampler(proxy, nodes)
        command = [args.larder, "load", proxy.url(), "--host", HOST, "--targets", log.targets, "--closed", str(args.clients),
                   "--threads", "1", "--warmup", str(log.requests // 3), "--nodes", str(args.nodes), "--check-sizes", "--json",
                   "--quiet"]
        load = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        sampler.start()
        try:
            output, talk = load.communicate(timeout=args.run_timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"{policy} on {log.name}: the run did not end in {args.run_timeout} s; see --run-timeout") from None
        sampler.ended.set()
        sampler.join(30)
        if load.returncode not in (0, 1) or not output:
            raise Failure(f"larder load failed:\n{talk.strip()}\n{proxy.log()}")
        report = json.loads(output)
        loads, busy, share, samples = sampler.window(report["timeline"])
        return {
            "requests_per_s": report["requests_per_s"], "requests_per_s_busy": report["requests_per_s_busy"],
            "hit_ratio": report["cache"]["hit_ratio"], "p50_ms": report["latency"]["p50_us"] / 1e3,
            "p99_ms": report["latency"]["p99_us"] / 1e3, "imbalance_load": imbalance(loads),
            "imbalance_requests": report["imbalance_requests"], "imbalance_busy": imbalance(busy), "failed": report["failed"],
            "measured": report["ok"], "measured_s": report["measured_s"], "faults": report["faults"],
            "statuses": report["statuses"], "machine_busy": share, "mean_loads": loads, "busy_s": busy, "samples": samples,
            "proxy_cpu_us_per_request": proxy.cpu_s() * 1e6 / max(1, report["finished"]), "proxy": proxy.counters(),
            "larder": proxy.larder(), "warnings": report["warnings"],
        }
    finally:
        if sampler:
            sampler.ended.set()
        if load:
            end(load)
        if proxy:
            proxy.stop()
        nodes.stop()
