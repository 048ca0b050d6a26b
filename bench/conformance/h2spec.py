#!/usr/bin/env python3
"""h2spec against larder's switch, with and without TLS, its node, HAProxy, nginx and Envoy. See ../README.md."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import report
from origin import Origin
from servers import Server, certificate, free_port

BEGIN, END = "<!-- begin: bench/conformance/h2spec.py -->", "<!-- end: bench/conformance/h2spec.py -->"
OURS = ("larder", "node")
MODULE = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"


def h2spec_program(given):
    """The program, installed from the Go module proxy if need be."""
    if given or shutil.which("h2spec"):
        return given or shutil.which("h2spec")
    home = pathlib.Path("target/h2spec").absolute()
    if not (home / "h2spec").exists():
        print("installing h2spec into target/h2spec", file=sys.stderr)
        subprocess.run(["go", "install", MODULE], check=True, env={**os.environ, "GOBIN": str(home)})
    return str(home / "h2spec")


def run(program, port, tls, work):
    """Cases by name: None if passed, else what was expected and what came; False if skipped."""
    junit = work / "junit.xml"
    command = [program, "-h", "127.0.0.1", "-p", str(port), "-j", str(junit), *(["-t", "-k"] if tls else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if not junit.exists():
        raise RuntimeError(f"h2spec has made no report:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    cases = {}
    # What servers say may hold bytes that no XML may.
    text = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]|&#x[01]?[0-9A-Fa-f];|\ufffd", "?", junit.read_text(errors="replace"))
    for suite in xml.etree.ElementTree.fromstring(text).iter("testsuite"):
        for number, case in enumerate(suite.iter("testcase"), 1):
            failed = case.find("failure") if case.find("failure") is not None else case.find("error")
            name = f"{case.get('package', suite.get('package', ''))} {number}: {case.get('classname')}"
            cases[name] = False if case.find("skipped") is not None else None if failed is None else " ".join(
                (failed.text or "").split())
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--haproxy", default=shutil.which("haproxy") or "/usr/sbin/haproxy")
    parser.add_argument("--nginx", default=shutil.which("nginx") or "/usr/sbin/nginx")
    parser.add_argument("--envoy", default=shutil.which("envoy"))
    parser.add_argument("--h2spec", help="the program; by default that in the PATH, or one from the Go module proxy")
    parser.add_argument("--only", default="larder,larder-tls,node-tls,haproxy,nginx,envoy", help="servers, comma-separated")
    parser.add_argument("--markdown", help="put the result into this document, between its marks")
    args = parser.parse_args()
    programs = {"larder": args.larder, "node": args.larder, "haproxy": args.haproxy, "nginx": args.nginx, "envoy": args.envoy}
    known = [f"{name}{suffix}" for name in programs for suffix in ("", "-tls")]
    if unknown := [name for name in args.only.split(",") if name not in known]:
        parser.error(f"--only: unknown server {', '.join(unknown)} (known: {', '.join(known)})")
    h2spec = h2spec_program(args.h2spec)
    results = {}
    with tempfile.TemporaryDirectory(prefix="h2spec-") as directory:
        work = pathlib.Path(directory)
        work.chmod(0o755)
        for name in args.only.split(","):
            base, tls = name.removesuffix("-tls"), name.endswith("-tls")
            if not programs[base] or not os.access(programs[base], os.X_OK):
                print(f"skipped: {name} (no program at {programs[base]})", file=sys.stderr)
                continue
            origin = Origin()
            secure = (free_port(), certificate(work)) if tls else None
            server = Server(base, programs[base], work / name, origin.port, secure)
            try:
                results[name] = run(h2spec, secure[0] if tls else server.http2_port, tls, work)
            finally:
                server.stop()
    lines = ["| | " + " | ".join(title(name) for name in results) + " |", "|---" * (len(results) + 1) + "|"]
    for what, count in (("passed", lambda case: case is None), ("failed", lambda case: bool(case)), ("skipped", lambda case: case is False)):
        lines.append(f"| {what} | " + " | ".join(str(sum(map(count, cases.values()))) for cases in results.values()) + " |")
    lines.append("")
    for name in results:
        failed = {case: why for case, why in results[name].items() if why}
        if name.startswith(OURS):
            lines += [f"- {title(name)}: {case}. {why}" for case, why in failed.items()]
        elif failed:
            lines.append(f"{title(name)} fails {', '.join(re.sub(': .*', '', case) for case in failed)}.")
            lines.append("")
    print("\n".join(lines))
    if args.markdown:
        report.between(pathlib.Path(args.markdown), BEGIN, END, "\n".join(lines).rstrip())
    sys.exit(1 if any(case for name, cases in results.items() if name.startswith(OURS) for case in cases.values()) else 0)


def title(name):
    return report.NAMES[name.removesuffix("-tls")] + (", TLS" if name.endswith("-tls") else "")


if __name__ == "__main__":
    main()
