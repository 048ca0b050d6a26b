"""Rounds of replays of a log with several policies, and their table."""

import statistics
import sys

import nodes

FIGURES = ["requests_per_s", "hit_ratio", "p50_ms", "p99_ms", "imbalance_load", "imbalance_requests", "imbalance_busy",
           "machine_busy", "proxy_cpu_us_per_request"]
# Beyond this share of busy processors, this machine may limit the result and not the policy.
MACHINE_BUSY_MAX = 0.85


def say(text):
    print(text, file=sys.stderr, flush=True)


def replay(args, work, path, start, is_base):
    """Measures all policies on a log, in rounds. Returns its result. `start` starts the proxy; see `nodes.run`. All policies are
    compared with the best of those that `is_base` accepts."""
    log = nodes.Log(args.larder, path, args.limit, work)
    memory = args.memory or f"{max(1 << 20, log.working_set // args.memory_parts)}B"
    say(f"{log.name}: {log.requests:,} requests, {len(log.sizes):,} targets, {log.working_set / 1e6:.1f} MB; {args.nodes} nodes "
        f"with {memory} each; {args.clients} clients")
    runs = {policy: [] for policy in args.policies}
    for turn in range(args.rounds):
        # Another policy is first in each round.
        at = turn % len(args.policies)
        for policy in args.policies[at:] + args.policies[:at]:
            run = nodes.run(args, work, log, memory, policy, start)
            runs[policy].append(run)
            say(f"  round {turn + 1} {policy}: {run['requests_per_s']:.0f} requests/s, {100 * (run['hit_ratio'] or 0):.1f} % hits, "
                f"p99 {run['p99_ms']:.0f} ms, {run['failed']} failed {run['faults'] or ''}")
    rows = [row(policy, runs[policy]) for policy in args.policies]
    bases = [row for row in rows if is_base(row["policy"])]
    best = max(bases, key=lambda row: row["requests_per_s"], default=None)
    for each in rows:
        if best:
            pairs = zip(runs[each["policy"]], runs[best["policy"]])
            ratios = [run["requests_per_s"] / other["requests_per_s"] for run, other in pairs]
            each |= {"ratio": each["requests_per_s"] / best["requests_per_s"], "ratio_min": min(ratios), "ratio_max": max(ratios)}
    return {"log": log.name, "requests": log.requests, "targets": len(log.sizes), "working_set_bytes": log.working_set,
            "memory": memory, "base": best and best["policy"], "policies": rows, "runs": runs}


def row(policy, runs):
    """Returns the medians of a policy's runs."""
    found = {"policy": policy}
    for figure in FIGURES:
        values = [run[figure] for run in runs if run[figure] is not None]
        found[figure] = statistics.median(values) if values else None
    rates = [run["requests_per_s"] for run in runs]
    return found | {"requests_per_s_min": min(rates), "requests_per_s_max": max(rates),
                    "failed": sum(run["failed"] for run in runs),
                    "retries": sum(run["proxy"]["upstream_rq_retry"] for run in runs)}


def cell(value, pattern):
    return "-" if value is None else format(value, pattern)


def show(result):
    base = result["base"] or "none of the policies"
    print(f"\n{result['log']}: medians; ratio to {base}; imbalance of the nodes (largest over mean) by active requests, by "
          "requests and by\nbusy time; CPU time of the proxy per request")
    print(f"{'policy':14} {'req/s':>7} {'min-max':>13} {'ratio':>6} {'min-max':>11} {'hits %':>6} {'p50 ms':>7} {'p99 ms':>7} "
          f"{'active':>6} {'requests':>8} {'busy':>5} {'failed':>6} {'retries':>7} {'CPU us':>7}")
    for each in result["policies"]:
        rates = f"{each['requests_per_s_min']:.0f}-{each['requests_per_s_max']:.0f}"
        ratios = f"{each['ratio_min']:.2f}-{each['ratio_max']:.2f}" if "ratio" in each else "-"
        hits = None if each["hit_ratio"] is None else 100 * each["hit_ratio"]
        print(f"{each['policy']:14} {each['requests_per_s']:7.0f} {rates:>13} {cell(each.get('ratio'), '.2f'):>6} {ratios:>11} "
              f"{cell(hits, '.1f'):>6} {each['p50_ms']:7.1f} {each['p99_ms']:7.0f} {cell(each['imbalance_load'], '.2f'):>6} "
              f"{cell(each['imbalance_requests'], '.2f'):>8} {cell(each['imbalance_busy'], '.2f'):>5} {each['failed']:6} "
              f"{each['retries']:7} {each['proxy_cpu_us_per_request']:7.1f}")
    for each in result["policies"]:
        if (each["machine_busy"] or 0) > MACHINE_BUSY_MAX:
            print(f"warning: {each['policy']}: the processors were {each['machine_busy']:.0%} busy, so this machine may limit the "
                  "result; use a lower --speed")
        if left := sum((run["larder"] or {"active": 0})["active"] for run in result["runs"][each["policy"]]):
            print(f"warning: {each['policy']}: {left} requests are still active for larder after the runs have ended")
