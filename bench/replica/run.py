#!/usr/bin/env python3
"""Compares larder's simulator with a second one, replica.c, on LARD's baseline.

Both replay the same trace with the costs and the memory of the paper (ASPLOS'98, section 3.1). The table has the
throughput of each policy and cluster in both, and the difference. The exit code is 1 if a difference is above --limit.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
POLICIES = ("wrr", "lard", "lard-r")
MEMORY = 32 * 1024 * 1024


def output(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, **options).stdout


def write_targets(log, trace):
    """Writes the requests of an access log as lines "target size", with targets numbered as they appear."""
    numbers = {}
    with log.open() as lines, trace.open("w") as out:
        for line in lines:
            parts = line.split('"')
            path = parts[1].split()[1]
            out.write(f"{numbers.setdefault(path, len(numbers))} {parts[2].split()[1]}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", type=pathlib.Path, default=REPO / "target/release/larder", help="the larder to compare")
    parser.add_argument("--recipe", default="rice-like", help="recipe of the trace (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the trace relative to the paper's (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the trace (%(default)s)")
    parser.add_argument("--nodes", default="4,8,16", help="numbers of nodes (%(default)s)")
    parser.add_argument("--limit", type=float, default=3.0, help="largest difference in per cent (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    counts = [int(count) for count in options.nodes.split(",")]
    memory = max(1, round(MEMORY * options.scale))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        log, trace, replica = folder / "trace.log", folder / "trace", folder / "replica"
        output("cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-o", replica, pathlib.Path(__file__).with_name("replica.c"))
        output(options.larder, "trace", "synth", options.recipe, "--scale", options.scale, "--seed", options.seed, "-o", log)
        write_targets(log, trace)
        simulated = json.loads(output(
            options.larder, "sim", "bound", "--json", "--log", log, "--costs", "lard98",
            "--memory", memory, "--nodes", options.nodes, "--policies", ",".join(POLICIES),
        ))
        for cluster in simulated["clusters"]:
            for run in cluster["policies"]:
                with trace.open() as requests:
                    own = json.loads(output(replica, run["policy"], cluster["nodes"], memory, stdin=requests))
                rows.append({
                    "policy": run["policy"],
                    "nodes": cluster["nodes"],
                    "larder": run["throughput"],
                    "replica": own["throughput"],
                    "difference_percent": 100 * (run["throughput"] / own["throughput"] - 1),
                    "larder_miss_ratio": 1 - run["hit_ratio"],
                    "replica_miss_ratio": own["miss_ratio"],
                })
    worst = max(abs(row["difference_percent"]) for row in rows)
    if options.json:
        print(json.dumps({"schema": "larder-replica/1", "requests": simulated["requests"], "rows": rows}, indent=2))
    else:
        print(f"{options.recipe}, scale {options.scale:g}: {simulated['requests']} requests, {memory} bytes of memory a node\n")
        print(f"{'policy':8} {'nodes':>5} {'larder':>10} {'replica':>10} {'difference':>10} {'misses':>8} {'replica':>8}")
        for row in sorted(rows, key=lambda row: (POLICIES.index(row["policy"]), row["nodes"])):
            print(
                f"{row['policy']:8} {row['nodes']:5} {row['larder']:8.0f}/s {row['replica']:8.0f}/s {row['difference_percent']:+8.1f} %"
                f" {100 * row['larder_miss_ratio']:6.2f} % {100 * row['replica_miss_ratio']:6.2f} %"
            )
        print(f"\nlargest difference: {worst:.1f} % (limit {options.limit:g} %)")
    return int(worst > options.limit)


if __name__ == "__main__":
    sys.exit(main())
