#!/usr/bin/env python3
"""Policies of larder inside nginx beside nginx's own methods, in one interleaved run.

Each run replays an access log through a fresh nginx to fresh nodes. The nodes are `larder node` with a modelled disk, processor
and a memory that is smaller than the working set. The first third of the requests warms the memories and is not measured.
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

from server import MODULE, OWN, Failure, Nginx, is_larder
from replay import replay, show  # bench/envoy, whose folder `server` has added to the path

POLICIES = "lard-r,lard-cost,hash_consistent,hash,least_conn"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nginx", default=shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"))
    parser.add_argument("--module", default="target/release", help=f"folder with {MODULE}")
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--log", action="append", default=[], help="access log to replay; may be repeated")
    parser.add_argument("--policies", default=POLICIES, help=f"policies of larder by their names, and {', '.join(OWN)} of nginx. "
                        f"Default: {POLICIES}")
    parser.add_argument("--settings", default="", help="more parameters for the directive larder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", "--out", help="also write the JSON here")
    parser.add_argument("--run-timeout", type=int, default=600, help="longest time of one run, in seconds")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--memory-parts", type=int, default=24, help="the working set over the memory of a node")
    parser.add_argument("--memory", help="memory of a node, such as 16MB, instead of --memory-parts")
    parser.add_argument("--speed", type=float, default=3, help="of the modelled disks and processors, relative to 1998")
    parser.add_argument("--cache-kind", default="gds", help="gds, gds-packets or lru")
    parser.add_argument("--clients", type=int, help="default: S = 65 (nodes - 1) + 24, which fills the cluster")
    parser.add_argument("--workers", type=int, default=4, help="of nginx")
    parser.add_argument("--limit", type=int, help="replay only this number of requests, from the start of each log")
    args = parser.parse_args()
    args.policies = args.policies.split(",")
    args.clients = args.clients or 65 * (args.nodes - 1) + 24
    check(args)
    return args


def check(args):
    if not args.log:
        raise Failure("there is nothing to replay: give --log")
    if not args.nginx or not os.access(args.nginx, os.X_OK):
        raise Failure("cannot find nginx: give --nginx, for example from `apt install nginx`")
    if not os.access(args.larder, os.X_OK):
        raise Failure(f"cannot run {args.larder}: give --larder, or `cargo build --release`")
    args.larder = str(pathlib.Path(args.larder).resolve())
    inside = [policy for policy in args.policies if is_larder(policy)]
    if inside and not pathlib.Path(args.module, MODULE).is_file():
        raise Failure(f"policies {', '.join(inside)}: --module must be a folder with {MODULE}; "
                      "`cargo build --release -p larder-nginx` writes it to target/release")
    args.module = str(pathlib.Path(args.module).resolve())


def version(args):
    return subprocess.run([args.nginx, "-v"], capture_output=True, text=True, check=True).stderr.strip().rpartition("/")[2]


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    results = []
    try:
        args = arguments()
        with tempfile.TemporaryDirectory(prefix="larder-nginx-") as folder:
            for path in args.log:
                results.append(replay(args, pathlib.Path(folder), path, Nginx, lambda policy: policy == "hash_consistent"))
                show(results[-1])
    except Failure as failure:
        sys.exit(f"error: {failure}")
    if args.output:
        document = {"schema": "larder/nginx/1", "settings": vars(args), "nginx": version(args), "processors": os.cpu_count(),
                    "logs": results}
        pathlib.Path(args.output).write_text(json.dumps(document, indent=1) + "\n")
    if failed := sum(each["failed"] for result in results for each in result["policies"]):
        sys.exit(f"{failed} requests failed")


if __name__ == "__main__":
    main()
