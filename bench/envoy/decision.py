"""Envoy's CPU time per request by policy, with many known targets and few or many hosts."""

import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

from proxy import Envoy, Failure, end
from server import addresses

SERVER = pathlib.Path(__file__).with_name("server.py")


class Server:
    """The server behind all hosts."""

    def __init__(self, count, core):
        command = [sys.executable, SERVER, str(count)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        preexec_fn=lambda: os.sched_setaffinity(0, {core}))
        line = self.process.stdout.readline()
        if not line:
            end(self.process)
            raise Failure("the server behind the hosts did not start; see its message above")
        self.port = int(line)

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            end(self.process)
        self.process.stdout.close()


def write_targets(path, numbers):
    path.write_text("".join(f"/catalogue/item-{number:08}.html\n" for number in numbers))
    return path


def send(args, envoy, targets, count):
    """Sends requests for these targets. Returns Envoy's CPU time per request in us, and the rate."""
    command = [args.larder, "load", envoy.url(), "--targets", targets, "--requests", str(count), "--closed",
               str(args.decision_clients), "--threads", "1", "--warmup", "0", "--json", "--quiet"]
    before = envoy.cpu_s()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.run_timeout,
                              preexec_fn=lambda: os.sched_setaffinity(0, {args.load_core}))
    except subprocess.TimeoutExpired:
        raise Failure(f"{envoy.policy}: {count} requests were not answered in {args.run_timeout} s; see --run-timeout") from None
    spent = envoy.cpu_s() - before
    if done.returncode not in (0, 1) or not done.stdout:
        raise Failure(f"larder load failed:\n{done.stderr.strip()}\n{envoy.log()}")
    report = json.loads(done.stdout)
    return {"cpu_us": spent * 1e6 / report["finished"], "requests_per_s": report["requests_per_s"], "failed": report["failed"],
            "finished": report["finished"], "faults": report["faults"]}


def measure(args, work, say):
    """Returns the rows of all policies and numbers of hosts, and the rounds."""
    lots = random.Random(args.seed)
    order = list(range(args.targets))
    lots.shuffle(order)
    fill = write_targets(work / "fill", order)
    counts = [int(count) for count in args.hosts.split(",")]
    if max(counts) > 60_000 or min(counts) < 1:
        raise Failure("--hosts: write numbers from 1 to 60000")
    server, envoys, runs = Server(max(counts), args.load_core), {}, {}
    try:
        for count in counts:
            for policy in args.policies:
                hosts = [(address, server.port) for address in addresses(count)]
                key = (count, policy)
                envoys[key] = Envoy(args, work / f"envoy-{len(envoys)}", policy, hosts, 1, args.ring_size, args.proxy_core)
                first = send(args, envoys[key], fill, args.targets)
                say(f"{count} hosts, {policy}: {args.targets:,} targets requested once, {first['requests_per_s']:.0f} requests/s, "
                    f"{first['failed']} failed")
        for turn in range(args.rounds):
            drawn = (lots.randrange(args.targets) for _ in range(args.decision_requests))
            targets = write_targets(work / "round", drawn)
            keys = list(envoys)
            at = turn % len(keys)
            for key in keys[at:] + keys[:at]:
                runs.setdefault(key, []).append(send(args, envoys[key], targets, args.decision_requests))
            say(f"round {turn + 1}: " + ", ".join(f"{count} hosts {policy} {runs[count, policy][-1]['cpu_us']:.2f} us"
                                                  for count, policy in keys))
        known = {key: envoy.larder() for key, envoy in envoys.items()}
    finally:
        for envoy in envoys.values():
            envoy.stop()
        server.stop()
    return rows(args.policies[0], runs, known)


def rows(base, runs, known):
    found = []
    for (count, policy), each in runs.items():
        costs = [run["cpu_us"] for run in each]
        # Differences within a round: the rest of the machine disturbs both in the same way.
        more = [run["cpu_us"] - other["cpu_us"] for run, other in zip(each, runs[count, base])]
        found.append({
            "hosts": count, "policy": policy,
            "cpu_us": statistics.median(costs), "cpu_us_min": min(costs), "cpu_us_max": max(costs),
            "more_us": statistics.median(more), "more_us_min": min(more), "more_us_max": max(more),
            "requests_per_s": statistics.median(run["requests_per_s"] for run in each),
            "failed": sum(run["failed"] for run in each), "larder": known[count, policy], "rounds": each,
        })
    return found


def show(base, found):
    print(f"{'hosts':>6} {'policy':16} {'CPU us/req':>10} {'min-max':>15} {'over ' + base:>15} {'min-max':>17} {'req/s':>7} "
          f"{'failed':>6}")
    for row in found:
        spread = f"{row['cpu_us_min']:.2f}-{row['cpu_us_max']:.2f}"
        more = f"{row['more_us_min']:+.2f} to {row['more_us_max']:+.2f}"
        print(f"{row['hosts']:6} {row['policy']:16} {row['cpu_us']:10.2f} {spread:>15} {row['more_us']:+12.2f} us {more:>17} "
              f"{row['requests_per_s']:7.0f} {row['failed']:6}")
