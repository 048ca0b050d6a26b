#!/usr/bin/env python3
"""Latency of relays under a steady load, side by side, on this machine. See README.md.

Requests come by a schedule (`larder load --rate`), and a latency counts from when its request was due: a relay that stalls makes
all that was due meanwhile late. The rates are shares of what HAProxy can relay on its core, and all relays get the same ones.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from run import MAKERS, OPENSSL_CONFIG, Proxy, backend, certificate, check, free_port, measure, url, write

QUANTILES = {"p50": "p50_us", "p99": "p99_us", "p99.9": "p99_9_us"}


def load(proxy, rate, args):
    """One run: latencies in us, and the number of requests that failed."""
    command = ["taskset", "-c", args.load_core, args.larder, "load", url(proxy, args.size, args), "--rate", str(round(rate)),
               "--duration", f"{args.seconds + 1}s", "--warmup", "1s", "--connections", str(args.connections), "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {**{name: report["latency"][key] for name, key in QUANTILES.items()}, "failed": report["failed"],
            "rate": report["requests_per_s"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--haproxy", default=shutil.which("haproxy") or "/usr/sbin/haproxy")
    parser.add_argument("--nginx", default=shutil.which("nginx") or "/usr/sbin/nginx")
    parser.add_argument("--wrk", default="wrk")
    parser.add_argument("--clients", choices=["clear", "tls"], default="clear")
    parser.add_argument("--size", default="1KB", help="of the reply: 1KB, 64KB or 1MB")
    parser.add_argument("--shares", default="0.5,0.8", help="of HAProxy's capacity")
    parser.add_argument("--proxy-core", default="0")
    parser.add_argument("--load-core", default="1")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    args.work, args.threads = "plain", 1

    paths = {"larder": args.larder, "haproxy": args.haproxy, "nginx": args.nginx}
    rows = {}
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as directory:
        work = pathlib.Path(directory)
        work.chmod(0o755)
        if os.geteuid() == 0:
            os.umask(0o022)
        origin, proxies = backend(work, args.load_core, args.nginx), []
        pem = None if args.clients == "clear" else certificate(work)
        args.openssl_config = write(work / "openssl.cnf", OPENSSL_CONFIG)
        try:
            for name, path in paths.items():
                port = free_port()
                proxy = Proxy(name, MAKERS[name](path, work, port, origin.port, pem, args), port, args.proxy_core)
                proxies.append(proxy)
                check(proxy, args)
            by_name = {proxy.name: proxy for proxy in proxies}
            costs = [measure(by_name["haproxy"], args.size, args)["cpu_us_per_request"] for _ in range(4)]
            capacity = 1e6 / statistics.median(costs[1:])
            print(f"HAProxy can relay {capacity:.0f} requests/s on its core", file=sys.stderr)
            for share in map(float, args.shares.split(",")):
                for turn in range(args.rounds):
                    # Another one is first in each round.
                    for proxy in proxies[turn % len(proxies):] + proxies[:turn % len(proxies)]:
                        rows.setdefault((share, proxy.name), []).append(load(proxy, share * capacity, args))
        finally:
            for proxy in [*proxies, origin]:
                proxy.stop()
    report = []
    print(f"{'load':>5} {'proxy':8} {'req/s':>7} " + " ".join(f"{name + ' us':>9}" for name in QUANTILES) + "  failed")
    for (share, name), runs in rows.items():
        row = {"share": share, "proxy": name, "failed": sum(run["failed"] for run in runs)}
        row |= {key: statistics.median(run[key] for run in runs) for key in ["rate", *QUANTILES]}
        row["late"] = row["rate"] < 0.99 * share * capacity
        report.append(row)
        print(f"{share:5.0%} {name:8} {row['rate']:7.0f} " + " ".join(f"{row[key]:9.0f}" for key in QUANTILES) + f"  {row['failed']}" +
              (" (not all requests were sent in time)" if row["late"] else ""))
    if args.json:
        setup = {key: getattr(args, key) for key in ["clients", "size", "connections", "seconds", "rounds", "proxy_core", "load_core"]}
        pathlib.Path(args.json).write_text(json.dumps({"setup": {**setup, "capacity": capacity}, "results": report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
