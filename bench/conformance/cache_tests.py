#!/usr/bin/env python3
"""http-tests/cache-tests against larder's node, Varnish, nginx, Apache and Squid as shared caches. See ../README.md."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import caches
import report
from servers import Server, free_port

HERE = pathlib.Path(__file__).parent.absolute()
BEGIN, END = "<!-- begin: bench/conformance/cache_tests.py -->", "<!-- end: bench/conformance/cache_tests.py -->"
MODULES = ("test-engine/server/server.mjs", "test-engine/client/runner.mjs", "tests/index.mjs")
START_S, RUN_S = 20, 900
PASSED = ("pass", "yes")
# Verdicts of the suite that are neither a pass, a failure nor a failed dependency.
UNDECIDED = ("setup_fail", "harness_fail", "retry")


class SuiteOrigin:
    """The suite's own origin server."""

    def __init__(self, node_js, suite, work):
        self.port = free_port()
        settings = {"npm_config_protocol": "http", "npm_config_port": str(self.port), "npm_config_pidfile": str(work / "origin.pid")}
        self.log = open(work / "origin.log", "wb")
        self.process = subprocess.Popen([node_js, suite / MODULES[0]], cwd=suite, env={**os.environ, **settings},
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        until = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    self.stop()
                    raise RuntimeError(f"the suite's origin server does not listen:\n{(work / 'origin.log').read_text(errors='replace')}")
                time.sleep(0.05)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def try_cache(name, program, work, args):
    """Runs all tests against one cache and returns them with their verdicts."""
    work.mkdir()
    work.chmod(0o755)
    origin = SuiteOrigin(args.node_js, args.suite, work)
    try:
        server = Server(name, program, work / "server", origin.port, makers=caches.MAKERS)
        try:
            command = [args.node_js, "--no-warnings", HERE / "cache_tests.mjs", args.suite, f"http://127.0.0.1:{server.port}",
                       str(args.at_a_time), *([args.test] if args.test else [])]
            done = subprocess.run(command, cwd=args.suite, capture_output=True, text=True, timeout=RUN_S)
            if done.returncode or server.process.poll() is not None:
                raise RuntimeError(f"the suite did not finish against {caches.NAMES[name]}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            return json.loads(done.stdout)
        finally:
            server.stop()
    finally:
        origin.stop()


def version(name, program):
    said = subprocess.run([program, caches.VERSION_OPTIONS[name]], capture_output=True, text=True)
    found = re.search(r"\d+\.\d+(\.\d+)?", said.stdout + said.stderr)
    return found[0] if found else "unknown"


def of_kind(tests, kind):
    return [test for test in tests if test["kind"] == kind]


def count(tests, *verdicts):
    return sum(test["verdict"] in verdicts for test in tests)


def markdown(results, versions):
    """The tables for all caches, and the required tests that each cache fails."""
    names = list(results)
    rows = [["", *(caches.NAMES[name] for name in names)], ["---"] * (len(names) + 1)]

    def row(title, cell):
        rows.append([title, *(str(cell(results[name])) for name in names)])

    rows.append(["version", *(versions[name] for name in names)])
    row("required tests", lambda tests: len(of_kind(tests, "required")))
    row("passed", lambda tests: count(of_kind(tests, "required"), *PASSED))
    row("failed", lambda tests: count(of_kind(tests, "required"), "fail"))
    row("a test that it depends on failed", lambda tests: count(of_kind(tests, "required"), "dependency_fail"))
    row("not decided (set-up failed or the cache retried)", lambda tests: count(of_kind(tests, "required"), *UNDECIDED))
    row("optimal tests", lambda tests: len(of_kind(tests, "optimal")))
    row("passed", lambda tests: count(of_kind(tests, "optimal"), *PASSED))
    lines = [table(rows), "", "Tests that pass in each group, required / optimal:", "", table(group_rows(results)), ""]
    for name in names:
        failed = [test for test in of_kind(results[name], "required") if test["verdict"] == "fail"]
        if failed:
            lines += [f"{caches.NAMES[name]} fails the required tests {', '.join(test['id'] for test in failed)}.", ""]
    return "\n".join(lines).rstrip()


def group_rows(results):
    """One row for each group that has required or optimal tests: how many it has, and how many each cache passes."""
    rows = [["group", "tests", *(caches.NAMES[name] for name in results)], ["---"] * (len(results) + 2)]
    for group in dict.fromkeys(test["group"] for tests in results.values() for test in tests):
        of_group = {name: [test for test in tests if test["group"] == group] for name, tests in results.items()}

        def cell(value):
            return " / ".join(str(value(kind)) for kind in ("required", "optimal"))

        total = cell(lambda kind: max(len(of_kind(tests, kind)) for tests in of_group.values()))
        if total != "0 / 0":
            rows.append([group, total, *(cell(lambda kind: count(of_kind(tests, kind), *PASSED)) for tests in of_group.values())])
    return rows


def table(rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def findings(tests):
    """The tests that the node does not pass, with the suite's explanation."""
    lines = []
    for kind in ("required", "optimal"):
        for test in of_kind(tests, kind):
            if test["verdict"] in PASSED:
                continue
            depends = [other for other in test["depends_on"] if next(
                (found["verdict"] for found in tests if found["id"] == other), None) not in PASSED]
            lines.append(f"{kind} {test['id']}: {test['verdict']}")
            lines.append(f"    {test['group']}: {test['name']}")
            lines += [f"    {test['reason']}"] if test["reason"] else []
            lines += [f"    by itself: {test['alone']}; depends on {', '.join(depends)}"] if depends else []
    return lines


def settings():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=pathlib.Path, help="a copy of github.com/http-tests/cache-tests in which npm install has run")
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--node-js", default=shutil.which("node") or shutil.which("nodejs"), help="the program node of Node.js")
    parser.add_argument("--only", default=",".join(caches.MAKERS), help="caches, comma-separated")
    parser.add_argument("--test", help="run this test and those that it depends on")
    parser.add_argument("--at-a-time", type=int, default=25, help="tests that run at the same time, 25 as in the suite's own client")
    parser.add_argument("--markdown", help="put the tables into this document, between its marks")
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    args.suite = args.suite.absolute()
    missing = [path for path in (*MODULES, "node_modules") if not (args.suite / path).exists()]
    if missing:
        parser.error(f"{args.suite} has no {missing[0]}: clone https://github.com/http-tests/cache-tests there, then run npm install in it")
    if not args.node_js:
        parser.error("Node.js is not installed (apt-get install nodejs)")
    return args


def main():
    args = settings()
    programs = {name: shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") for name, program in caches.PROGRAMS.items()}
    programs["node"] = args.larder if os.access(args.larder, os.X_OK) else None
    wanted = args.only.split(",")
    for name in [name for name in wanted if not programs[name]]:
        print(f"skipped: {caches.NAMES[name]} is not installed", file=sys.stderr)
        wanted.remove(name)
    with tempfile.TemporaryDirectory(prefix="cache-tests-") as directory:
        work = pathlib.Path(directory)
        work.chmod(0o755)
        with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
            runs = {name: pool.submit(try_cache, name, programs[name], work / name, args) for name in wanted}
            results = {name: run.result() for name, run in runs.items()}
    versions = {name: version(name, programs[name]) for name in wanted}
    text = markdown(results, versions)
    print(text)
    if args.markdown:
        report.between(pathlib.Path(args.markdown), BEGIN, END, text)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"versions": versions, "results": results}, indent=1) + "\n")
    if "node" in results:
        print("\n".join(["", "What the node does not pass:", *findings(results["node"])]))
        sys.exit(1 if count(of_kind(results["node"], "required"), "fail") else 0)


if __name__ == "__main__":
    main()
