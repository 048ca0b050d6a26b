#!/usr/bin/env python3
"""Malformed, ambiguous and odd requests and replies through larder's switch and node, HAProxy, nginx and Envoy. See ../README.md."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import client
import corpus
import report
from judge import judge, settle
from origin import Origin
from servers import Server, certificate, free_port

VERSION = {"larder": "--version", "node": "--version", "haproxy": "-v", "nginx": "-v", "envoy": "--version"}


def version(name, program):
    said = subprocess.run([program, VERSION[name]], capture_output=True, text=True)
    found = re.search(r"\d+\.\d+\.\d+", said.stdout + said.stderr)
    return found[0] if found else "unknown"


def try_all(name, program, work, cases, verbose):
    """Every case against one server: verdicts by the case's name."""
    origin = Origin()
    # The node speaks HTTP/2 over TLS alone.
    secure = (free_port(), certificate(work.parent)) if name == "node" else None
    server = Server(name, program, work, origin.port, secure)
    verdicts = {}
    try:
        for case in cases:
            origin.begin(case)
            http2_port = secure[0] if secure else server.http2_port
            port, tls = (server.port, False) if case.fields is None else (http2_port, bool(secure))
            answer = client.ask(port, case, len(case.sees), tls)
            requests, partial = settle(origin, 1 if answer.final and answer.final < 400 else 0)
            verdicts[case.id] = judge(case, answer, requests, partial)
            if verbose:
                heads = [request.head + b" | " + request.body.encode("latin-1") for request in requests]
                print(name, case.id, verdicts[case.id], answer.raw[:300], heads, partial, sep="\n  ", file=sys.stderr)
            if server.process.poll() is not None:
                raise RuntimeError(f"{name} has ended at case {case.id}")
    finally:
        server.stop()
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--haproxy", default=shutil.which("haproxy") or "/usr/sbin/haproxy")
    parser.add_argument("--nginx", default=shutil.which("nginx") or "/usr/sbin/nginx")
    parser.add_argument("--envoy", default=shutil.which("envoy"))
    parser.add_argument("--only", help="servers, comma-separated")
    parser.add_argument("--case", help="cases whose names begin so")
    parser.add_argument("--verbose", action="store_true", help="show what was sent and seen")
    parser.add_argument("--markdown", help="put the tables into this document, between its marks")
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()

    programs = {"larder": args.larder, "node": args.larder, "haproxy": args.haproxy, "nginx": args.nginx, "envoy": args.envoy}
    wanted = args.only.split(",") if args.only else list(programs)
    if unknown := [name for name in wanted if name not in programs]:
        parser.error(f"--only: unknown server {', '.join(unknown)} (known: {', '.join(programs)})")
    cases = [case for case in corpus.read() if case.id.startswith(args.case or "")]
    missing = [name for name in wanted if not programs[name] or not os.access(programs[name], os.X_OK)]
    for name in missing:
        print(f"skipped: {name} (no program at {programs[name]})", file=sys.stderr)
    wanted = [name for name in wanted if name not in missing]
    with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
        work = pathlib.Path(directory)
        work.chmod(0o755)
        with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
            runs = {name: pool.submit(try_all, name, programs[name], work / name, cases, args.verbose) for name in wanted}
            results = {name: run.result() for name, run in runs.items()}
    versions = {name: version(name, programs[name]) for name in wanted}
    print(report.text(cases, results))
    if args.markdown:
        report.into(pathlib.Path(args.markdown), cases, results, versions)
    if args.json:
        table = {name: {case: vars(verdict) for case, verdict in verdicts.items()} for name, verdicts in results.items()}
        pathlib.Path(args.json).write_text(json.dumps({"versions": versions, "results": table}, indent=1) + "\n")
    ours = [name for name in ("larder", "node") if name in results]
    bad = sum(report.is_bad(case, name, results) for case in cases for name in ours)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
