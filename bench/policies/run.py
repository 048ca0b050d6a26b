#!/usr/bin/env python3
"""Compares every policy with the best one, on simulated clusters: is one of them good on every workload?

Each workload runs on clusters of several sizes, with several memories and cost models, at saturation. The first table has
each policy's throughput in per cent of the best policy's: the least over all clusters, the median, and the cluster of the
least. The second lists the clusters where POLICY is below --limit, and the best policy there.

Recipes are synthetic traces with the published figures of the papers' traces. `--log NAME=FILE` adds an access log. A recipe's
throughput is the mean over its seeds. One seed gives up to 12 % more or less than the mean of five at a scale of 0.1, where a run
lasts about as long as the policies keep a replica, and up to 4 % more or less than the mean of three at 1 (`lard`, `lard-r`,
`lard-cost` and `lmetric` on three and four clusters). So with one seed and a small scale, luck decides which of these is the best.
"""

import argparse
import fractions
import json
import pathlib
import statistics
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
RECIPES = (
    "rice-like", "ibm-like", "hp-like", "hp-hours-like", "clarknet-like", "nasa-like", "rutgers-like", "forth-like",
    "combined-like", "deepblue-like", "rice+hot",
)
# Shares of the working set that the memory of one node holds.
MEMORIES = ("1/64", "1/16", "1/4")


def bound(options, workload, costs, nodes, *arguments):
    command = [options.larder, "sim", "bound", "--json", *workload, "--costs", costs, "--nodes", nodes, *arguments]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"run.py: {done.stderr.strip()}")
    return json.loads(done.stdout)


def workloads(options):
    """Returns the workloads: each has a name, and the arguments of one run for each seed."""
    for recipe in options.recipes.split(",") if options.recipes else ():
        yield recipe, [["--recipe", recipe, "--scale", options.scale, "--seed", seed] for seed in options.seeds.split(",")]
    for log in options.log:
        name, found, path = log.partition("=")
        if not found:
            sys.exit(f"run.py: --log {log}: give NAME=FILE")
        yield name, [["--log", path]]


def clusters(options, workload, costs, memory):
    """Runs all policies on all clusters, whose nodes have this memory in bytes."""
    return bound(options, workload, costs, options.nodes, "--memory", max(1, int(memory)), "--policies", "all")["clusters"]


def mean_row(runs):
    """Returns the number of nodes, and the mean throughputs of one cluster's runs."""
    policies = [{run["policy"]: run["throughput"] for run in cluster["policies"]} for cluster in runs]
    return {
        "nodes": runs[0]["nodes"], "bound": statistics.mean(cluster["bound"]["throughput"] for cluster in runs),
        "throughput": {policy: statistics.mean(run[policy] for run in policies) for policy in policies[0]},
    }


def measure(options):
    """Returns one row for each workload, cost model, memory and cluster: {policy: throughput}."""
    rows = []
    for name, seeds in workloads(options):
        for costs in options.costs.split(","):
            sizes = [bound(options, workload, costs, nodes="1")["working_set_bytes"] for workload in seeds]
            for share in options.memories:
                of_seeds = [clusters(options, workload, costs, size * share) for workload, size in zip(seeds, sizes)]
                rows += [{"workload": name, "costs": costs, "memory": str(share), **mean_row(runs)} for runs in zip(*of_seeds)]
            print(f"{name}, {costs}: done", file=sys.stderr)
            if options.json:
                options.json.write_text(json.dumps({"schema": "larder-policies/1", "clusters": rows}, indent=1))
    return rows


def memories(text):
    """Parses shares of the working set, such as 1/16."""
    shares = [fractions.Fraction(share) for share in text.split(",")]
    if any(share <= 0 for share in shares):
        raise ValueError(text)
    return shares


def place(row):
    return f"{row['workload']}, {row['costs']}, memory {row['memory']}, {row['nodes']} nodes"


def report(rows, policy, limit):
    shares = {}
    for row in rows:
        best = max(row["throughput"].values())
        for name, throughput in row["throughput"].items():
            shares.setdefault(name, []).append((100 * throughput / best, row))
    print(f"\n{len(rows)} clusters; throughput in per cent of the best policy's\n")
    print(f"{'policy':14} {'least':>6} {'median':>7}  cluster of the least")
    for name, cells in sorted(shares.items(), key=lambda entry: -min(share for share, _ in entry[1])):
        share, row = min(cells, key=lambda cell: cell[0])
        print(f"{name:14} {share:6.1f} {statistics.median(share for share, _ in cells):7.1f}  {place(row)}")
    below = sorted((cell for cell in shares[policy] if cell[0] < limit), key=lambda cell: cell[0])
    print(f"\n{policy} is below {limit:g} % in {len(below)} of {len(rows)} clusters")
    for share, row in below:
        best = max(row["throughput"], key=row["throughput"].get)
        print(f"{share:6.1f}  {place(row)}: {best}")
    return len(below)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", type=pathlib.Path, default=REPO / "target/release/larder", help="the larder to run")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="recipes of synthetic traces (all of the papers)")
    parser.add_argument("--log", action="append", default=[], metavar="NAME=FILE", help="an access log; may be repeated")
    parser.add_argument("--scale", type=float, default=0.1, help="size of the synthetic traces (%(default)s)")
    parser.add_argument("--seeds", default="1", help="seeds of the synthetic traces, such as 1,2,3 (%(default)s)")
    parser.add_argument("--nodes", default="4,8,16", help="numbers of nodes (%(default)s)")
    parser.add_argument("--memories", type=memories, default=",".join(MEMORIES), help="memory of a node over the working set (%(default)s)")
    parser.add_argument("--costs", default="lard98,modern", help="cost models (%(default)s)")
    parser.add_argument("--policy", default="lard-cost", help="policy of the second table (%(default)s)")
    parser.add_argument("--limit", type=float, default=97.0, help="least per cent of the best (%(default)s)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all throughputs to FILE")
    options = parser.parse_args()
    rows = measure(options)
    if not rows:
        parser.error("no workload: give --recipes or --log")
    if options.policy not in rows[0]["throughput"]:
        parser.error(f"--policy {options.policy}: use one of {', '.join(rows[0]['throughput'])}")
    return int(report(rows, options.policy, options.limit) > 0)


if __name__ == "__main__":
    sys.exit(main())
