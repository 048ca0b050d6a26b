#!/usr/bin/env python3
"""CPU per request of front-ends, side by side, all work counted. See README.md."""

import argparse
import json
import pathlib
import sys

import plot
from lab import IDLE, Lab, Meter, build_load, faults, load, machine, median, say
from systems import SIZES, System, files, larder_node, nginx_node, paths

CONNECTIONS = {"1KB": 32, "16KB": 32, "128KB": 16, "1MB": 16, "10MB": 8}
KEYS = ["front_us", "total_us", "front_process_us", "front_napi_us", "front_named_us", "foreign_us", "front_busy",
        "other_busy", "requests_per_s", "p50_us", "p99_us"]
# What the front-end may cost at most, as a share of HAProxy's cost: (size, kept alive, mechanism) -> share.
TARGETS = {("1KB", False, "cookie"): 0.35, ("1KB", True, "cookie"): 0.15, ("1MB", False, "cookie"): 0.12,
           ("1KB", False, "repair"): 0.55, ("1KB", True, "repair"): 0.15, ("1MB", False, "repair"): 0.14}


def measure(lab, program, system, meter, size, keep, seconds):
    arguments = dict(address=system.address, port=80, connections=CONNECTIONS[size], keep=keep, paths=paths(size))
    load(lab, program, seconds=max(0.3, seconds / 5), **arguments)
    before = meter.look()
    result = load(lab, program, seconds=seconds, **arguments)
    cost = Meter.between(before, meter.look(), result["done"])
    return {**cost, "requests_per_s": result["done"] / result["seconds"], "p50_us": result["p50_us"],
            "p99_us": result["p99_us"], "requests": result["done"], "faults": faults(result)}


def one_round(lab, program, names, plain, own, sizes, manners, seconds, rows):
    for name in names:
        with System(lab, name, plain, own) as system:
            meter = Meter(lab, system.processes())
            for size in sizes:
                for keep in manners:
                    row = measure(lab, program, system, meter, size, keep, seconds)
                    rows.setdefault((size, keep, name), []).append(row)
                    say(f"{name:15} {size:6} {'keep' if keep else 'close'} front {row['front_us']:9.1f} us (named "
                        f"{row['front_named_us']:9.1f}: process {row['front_process_us']:.1f}, napi {row['front_napi_us']:.1f}) "
                        f"total {row['total_us']:9.1f} {row['requests_per_s']:8.0f}/s p99 {row['p99_us']:.0f} us "
                        f"faults {row['faults']}")
            delivered = system.delivered()
            if delivered:
                say(f"{name:15} delivered: {delivered}")


def summary(rows):
    cells = []
    for (size, keep, name), runs in rows.items():
        cell = {"size": size, "keep": keep, "system": name, "runs": len(runs), "faults": sum(r["faults"] for r in runs)}
        cell |= {key: median(runs, key) for key in KEYS}
        cell["front_min_us"], cell["front_max_us"] = (f(r["front_us"] for r in runs) for f in (min, max))
        cells.append(cell)
    by = {(c["size"], c["keep"], c["system"]): c for c in cells}
    for cell in cells:
        base, floor = (by.get((cell["size"], cell["keep"], name)) for name in ("haproxy", "direct"))
        for key in ["front_us", "front_named_us"]:
            cell[f"{key}_of_haproxy"] = cell[key] / base[key] if base and base[key] else None
        cell["floor_us"] = floor["front_us"] if floor else None
    return cells


def table(cells, measured):
    lines = [f"Front-end CPU per request, us [all hosts, us] (share of haproxy); by {measured}", ""]
    names = list(dict.fromkeys(c["system"] for c in cells))
    for keep in dict.fromkeys(c["keep"] for c in cells):
        some = [c for c in cells if c["keep"] == keep]
        lines += ["kept alive" if keep else "one request a connection", "",
                  "| size | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for size in dict.fromkeys(c["size"] for c in some):
            fields = []
            for name in names:
                cell = next((c for c in some if c["size"] == size and c["system"] == name), None)
                share = cell and cell[f"{measured}_of_haproxy"]
                fields.append("-" if not cell else f"{cell[measured]:.1f} [{cell['total_us']:.0f}]"
                              + (f" ({share:.2f})" if share and "direct" not in name else ""))
            lines.append(f"| {size} | " + " | ".join(fields) + " |")
        lines.append("")
    return "\n".join(lines)


# (portable, not portable): what a server that relays costs beyond one that hands over, on the same nodes.
PORTABLE = [("relay", "cookie"), ("relay-larder", "repair")]


def portability(cells):
    """The cost of portability as PRESS has it: the throughput that a portable server loses, here where all processors are the
    limit, so by the processor time of all hosts."""
    by = {(c["size"], c["keep"], c["system"]): c for c in cells}
    lines = ["Cost of portability: throughput that handing over gains on relaying, all hosts' processors being the limit",
             "(PRESS's model: at most 16 % on a fast network, 107 % on a slow one)", "",
             "| size | " + " | ".join(f"{b} over {a}, {m}" for a, b in PORTABLE for m in ("close", "keep")) + " |",
             "|---" * (1 + 2 * len(PORTABLE)) + "|"]
    for size in dict.fromkeys(c["size"] for c in cells):
        pairs = [(by.get((size, keep, a)), by.get((size, keep, b))) for a, b in PORTABLE for keep in (False, True)]
        lines.append(f"| {size} | " + " | ".join(f"{a['total_us'] / b['total_us'] - 1:+.0%}" if a and b else "-" for a, b in pairs) + " |")
    return "\n".join(lines) + "\n"


def verdicts(cells, measured):
    lines, missed = [], 0
    for (size, keep, name), limit in TARGETS.items():
        cell = next((c for c in cells if (c["size"], c["keep"], c["system"]) == (size, keep, name)), None)
        share = cell and cell[f"{measured}_of_haproxy"]
        if share is None:
            continue
        missed += share > limit
        lines.append(f"{name:7} {size:5} {'kept alive' if keep else 'one a connection':17} {share:.3f} of haproxy, "
                     f"at most {limit}: {'met' if share <= limit else 'MISSED'}")
    return "\n".join(lines), missed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--only", help=f"systems, comma-separated, of {','.join(System.ALL)}")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--manner", choices=["both", "close", "keep"], default="both")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wire", choices=["nic", "jumbo"], default="nic", help="packets of MTU size, or as hosts hand them over")
    parser.add_argument("--idle", choices=list(IDLE), default="machine",
                        help="how idle processors of a virtual machine wait for work: as this one is set; with the defaults of "
                             "cpuidle's haltpoll, which looks for work for up to 200 us before a processor halts; for 2 ms")
    parser.add_argument("--named", action="store_true",
                        help="judge by the CPU time of the front-end's own threads: on a machine that does other work too")
    parser.add_argument("--json", help="write the results here")
    parser.add_argument("--plot", help="write the crossover plot here (SVG)")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else System.ALL
    unknown = set(names) - set(System.ALL) | set(args.sizes.split(",")) - set(SIZES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    manners = {"both": [False, True], "close": [False], "keep": [True]}[args.manner]
    rows = {}
    with Lab(4, args.larder, args.wire, idle=args.idle) as lab:
        idle = lab.idle
        program, root = build_load(lab.work), files(lab.work / "root")
        plain = [(f"n{i}", lab.nodes[i]) for i in (0, 1)]
        own = [(f"n{i}", lab.nodes[i]) for i in (2, 3)]
        for name, host in plain:
            nginx_node(lab, host, name, root)
        for name, host in own:
            larder_node(lab, host, name, root)
        # Rounds are interleaved, so that whatever else the machine does meets all alike.
        for number in range(args.rounds):
            say(f"round {number + 1} of {args.rounds}")
            one_round(lab, program, names, plain, own, args.sizes.split(","), manners, args.seconds, rows)
    cells = summary(rows)
    measured = "front_named_us" if args.named else "front_us"
    judged, missed = verdicts(cells, measured)
    print(f"idle processors: {idle}; packets of {'MTU size' if args.wire == 'nic' else '64 KB'}\n")
    print(table(cells, measured))
    print(portability(cells))
    print(judged)
    if args.json:
        setup = {key: getattr(args, key) for key in ["seconds", "rounds", "wire", "named"]} | {"idle": idle}
        pathlib.Path(args.json).write_text(json.dumps({"machine": machine(), "setup": setup, "results": cells}, indent=1) + "\n")
    if args.plot:
        pathlib.Path(args.plot).write_text(plot.crossover(cells, measured))
    return 1 if missed or any(c["faults"] for c in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
