#!/usr/bin/env python3
"""Gives the same twenty mistakes to the config checks of larder, Caddy and HAProxy, and prints who names what.

The mistakes stand in crates/larder/tests/mistakes.toml. A check names the place, the cause or the remedy if its output has
the text that the file gives for it. A mistake is accepted if the check ends with 0; a warning may name it nevertheless.
"""

import argparse
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import tomllib

REPO = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = {"larder": "larder.toml", "caddy": "Caddyfile", "haproxy": "haproxy.cfg"}
PARTS = ("place", "cause", "remedy")
SECONDS = 60
SHOWN_BY = "`mistakes::each_mistake_is_named_with_its_place_cause_and_remedy`"


CA = """
[ca]
default_ca = own
[own]
dir = {folder}
database = {folder}/index.txt
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = leaf
[leaf]
basicConstraints = CA:FALSE
[any]
commonName = supplied
"""


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def certificate(folder, name):
    """Makes NAME.pem with a certificate and its key, and NAME.key with the key alone."""
    key, pem = folder / f"{name}.key", folder / f"{name}.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}.test")
    if name == "expired":
        config, request = folder / "ca.cnf", folder / "expired.csr"
        config.write_text(CA.format(folder=folder))
        (folder / "index.txt").write_text("")
        openssl("req", "-new", *curve, "-keyout", key, "-out", request)
        dates = ("-startdate", "20200101000000Z", "-enddate", "20200201000000Z")
        openssl("ca", "-batch", "-notext", "-selfsign", "-config", config, "-keyfile", key, *dates, "-in", request, "-out", pem)
    else:
        openssl("req", "-x509", *curve, "-days", "90", "-keyout", key, "-out", pem)
    pem.write_text(pem.read_text() + key.read_text())
    for file in (key, pem):
        file.chmod(0o600)


def prepare(folder):
    for name in ("right", "other", "expired"):
        certificate(folder, name)
    right, other = (folder / "right.pem").read_text(), (folder / "other.key").read_text()
    (folder / "defaults.cfg").write_text(DEFAULTS)
    mixed = folder / "mixed.pem"
    mixed.write_text(right.split("-----BEGIN PRIVATE")[0] + other)
    mixed.chmod(0o600)


# What HAProxy warns of in every config without it.
DEFAULTS = "defaults\n    timeout connect 5s\n    timeout client 30s\n    timeout server 30s\n"


def command(program, binary, file):
    return {
        "larder": [binary, "check", file],
        "caddy": [binary, "validate", "--adapter", "caddyfile", "--config", file],
        "haproxy": [binary, "-c", "-V", "-f", file.with_name("defaults.cfg"), "-f", file],
    }[program]


def check(program, binary, folder, config):
    """The exit code and the output of a check, without the text of the config itself."""
    file = folder / PROGRAMS[program]
    file.write_text(config.lstrip("\n"))
    ran = subprocess.run(
        command(program, binary, file), capture_output=True, text=True, timeout=SECONDS, cwd=folder
    )
    # larder prints the config back on stdout, which names no mistake.
    output = ran.stderr if program == "larder" else ran.stdout + ran.stderr
    return ran.returncode, output


def has(output, part, text):
    # A line is named in a few ways: "file:4", "file:4:12", "file:4]", "line 4".
    if part == "place":
        line = re.search(r"\d+", text).group()
        return re.search(rf"(:{line}\b|line {line}\b)", output) is not None
    return text in output


def larder(named):
    """The first word is one that the tidy test knows."""
    if len(named) == len(PARTS):
        return "yes"
    return f"partly: {', '.join(named)}" if named else "no"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--larder", default=REPO / "target/debug/larder", help="binary")
    parser.add_argument("--caddy", default="caddy", help="binary")
    parser.add_argument("--haproxy", default="haproxy", help="binary")
    parser.add_argument("--verbose", action="store_true", help="print what each check says")
    args = parser.parse_args()
    binaries = {program: str(getattr(args, program)) for program in PROGRAMS}
    mistakes = tomllib.loads((REPO / "crates/larder/tests/mistakes.toml").read_text())["mistake"]
    totals = {program: 0 for program in PROGRAMS}
    print("| | larder | shown by | Caddy | HAProxy |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as taken:
        folder = pathlib.Path(name)
        prepare(folder)
        address = "{}:{}".format(*taken.getsockname())
        for mistake in mistakes:
            cells = []
            for program, binary in binaries.items():
                put = lambda text: text.replace("DIR", str(folder)).replace("TAKEN", address)
                code, output = check(program, binary, folder, put(mistake["config"][program]))
                named = [part for part in PARTS if has(output, part, put(mistake[program][part]))]
                # A line number in an output that does not know the mistake is chance.
                named = named if code or "cause" in named else []
                totals[program] += len(named)
                words = ([] if code else ["accepted"]) + ([", ".join(named)] if named else [])
                cells.append(larder(named) if program == "larder" else ": ".join(words) or "nothing")
                if args.verbose:
                    print(f"--- {mistake['title']}: {program} ends with {code}\n{output}", file=sys.stderr)
            print(f"| {mistake['title']} | {' | '.join([cells[0], SHOWN_BY, *cells[1:]])} |")
    of = 3 * len(mistakes)
    print("\n" + ", ".join(f"{program} names {total} of {of}" for program, total in totals.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
