#!/usr/bin/env python3
"""Latency, handoffs and packets per second of a front-end core, the dispatcher's share, and a flood of SYNs. See README.md."""

import argparse
import contextlib
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

from lab import FRONT_CPU, HERE, OTHER_CPU, VIP, Lab, Meter, build_load, faults, load, machine, run, runtime_ns, say
from systems import System, ask, files, larder_node, metric, nginx_node, paths

LATENCY = ["direct", "cookie", "cookie-slow", "repair", "relay", "splice", "haproxy", "nginx"]
# LARD's prototype (facts of its section 6.2): handoff latency, handoffs a second, an acknowledgement forwarded.
LARD = {"latency_us": 194, "handoffs_per_s": 5000, "forward_us": 9, "dispatcher_share": "10-20 %", "nodes_per_front": 10}


FLOODS = 5
FLOOD_MAC = "02:00:00:09:00:ff"
STATS = pathlib.Path("/proc/sys/kernel/bpf_stats_enabled")


@contextlib.contextmanager
def timed_programs():
    """The kernel reads the clock for every run of a program then: not while CPU time is what counts."""
    before = STATS.read_text()
    STATS.write_text("1")
    try:
        yield
    finally:
        STATS.write_text(before)


def spent_in_plane(work):
    """Nanoseconds and runs of the front-end's program during `work()`."""
    with timed_programs():
        before = plane_runtime()
        work()
        after = plane_runtime()
    return [sum(after[i][k] - before.get(i, (0, 0))[k] for i in after) for k in (0, 1)]


def plane_runtime():
    """Time and runs of the front-end's XDP program, summed over programs of that name."""
    programs = json.loads(run("bpftool", "-j", "prog", "show"))
    ours = [p for p in programs if p.get("name") == "front_xdp"]
    return {p["id"]: (p.get("run_time_ns", 0), p.get("run_cnt", 0)) for p in ours}


def latency(lab, program, plain, own, seconds):
    """One connection at a time on an idle machine."""
    rows = {}
    for name in LATENCY:
        with System(lab, name, plain, own) as system:
            arguments = dict(address=system.address, port=80, connections=1, keep=False, paths=paths("1KB")[:1])
            load(lab, program, seconds=0.5, **arguments)
            result = load(lab, program, seconds=seconds, **arguments)
            rows[name] = {key: result[key] for key in ["p50_us", "p90_us", "p99_us", "done"]} | {"faults": faults(result)}
            say(f"latency {name}: {rows[name]}")
    floor = rows["direct"]["p50_us"]
    return {name: row | {"added_us": row["p50_us"] - floor} for name, row in rows.items()}


def handoffs(lab, program, plain, own, seconds):
    """The front-end's CPU time for a handoff, and what the node spends on the connection."""
    rows = {}
    for name in ["cookie", "cookie-slow", "repair"]:
        with System(lab, name, plain, own) as system:
            meter = Meter(lab, system.processes())
            names = {node for node, _ in system.nodes}
            servers = [p for p in lab.processes if p.name.split("-")[0] in names]
            threads = lab.napi_threads()
            pids = [pid for p in servers for pid in p.pids()] + [t for _, host in system.nodes for t in threads.get(host.device, [])]
            arguments = dict(address=system.address, port=80, connections=32, keep=False, paths=paths("1KB"))
            load(lab, program, seconds=0.5, **arguments)
            a, node_a = meter.look(), runtime_ns(pids)
            result = load(lab, program, seconds=seconds, **arguments)
            b, node_b = meter.look(), runtime_ns(pids)
            cost, timed = Meter.between(a, b, result["done"]), {}
            spent = spent_in_plane(lambda: timed.update(load(lab, program, seconds=seconds / 2, **arguments)))
            node_us = (node_b - node_a) / 1e3 / max(1, result["done"])
            rows[name] = {
                "front_us": cost["front_us"], "front_named_us": cost["front_named_us"], "process_us": cost["front_process_us"],
                "napi_us": cost["front_napi_us"], "node_us": node_us, "measured_per_s": result["done"] / result["seconds"],
                "front_busy": cost["front_busy"], "other_busy": cost["other_busy"], "faults": faults(result),
                "handoffs_per_s_of_a_core": 1e6 / cost["front_us"], "handoffs_per_s_named": 1e6 / max(0.1, cost["front_named_us"]),
                "nodes_per_front_core": node_us / cost["front_us"], "nodes_per_front_core_named": node_us / max(0.1, cost["front_named_us"]),
                "bpf_us": spent[0] / 1e3 / max(1, timed["done"]), "bpf_ns_per_packet": spent[0] / max(1, spent[1]),
                "packets": spent[1] / max(1, timed["done"]), "delivered": system.delivered(),
            }
            say(f"handoffs {name}: " + ", ".join(f"{k} {v:.1f}" for k, v in rows[name].items() if isinstance(v, float)))
    return rows


def forwarding(lab, program, plain, own, seconds):
    """Packets that only pass: requests and acknowledgements on kept connections, as many as the other processor makes. Fewer, as
    the acknowledgements of large replies, cost more each: a thread is woken for every one."""
    with System(lab, "cookie", plain, own) as system:
        meter = Meter(lab, system.processes())
        arguments = dict(address=VIP, port=80, connections=64, keep=True, paths=paths("1KB"))
        load(lab, program, seconds=0.5, **arguments)
        forwarded = lambda: metric(lab, "larder_switch_plane_total", event="forwarded")
        before, a = forwarded(), meter.look()
        result = load(lab, program, seconds=seconds, **arguments)
        b, packets = meter.look(), max(1, forwarded() - before)
        cost = Meter.between(a, b, packets)
        spent = spent_in_plane(lambda: load(lab, program, seconds=seconds / 2, **arguments))
        row = {"packets_per_s": packets / result["seconds"], "front_us_per_packet": cost["front_us"],
               "front_named_us_per_packet": cost["front_named_us"], "napi_us_per_packet": cost["front_napi_us"],
               "bpf_ns_per_packet": spent[0] / max(1, spent[1]), "packets_per_s_of_a_core": 1e6 / cost["front_us"],
               "packets_per_s_of_a_core_named": 1e6 / max(1e-3, cost["front_named_us"]),
               "packets_per_s_bpf_alone": 1e9 * max(1, spent[1]) / max(1, spent[0]),
               "reply_gbit_per_s": result["bytes"] * 8e-9 / result["seconds"], "faults": faults(result)}
        say(f"forwarding: {row}")
        return row


def dispatcher_share(lab, program, plain, own, seconds):
    """Samples of the front-end's processor in the dispatcher's code, of all that a punted handoff costs."""
    with System(lab, "cookie-slow", plain, own):
        data = lab.work / "perf.data"
        command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4999", "-C", str(FRONT_CPU), "-o", str(data), "--",
                   *lab.client.command(program, VIP, 80, 32, seconds, "close", 0, "each", *paths("1KB"))]
        done = subprocess.run(command, capture_output=True, text=True)
        report = subprocess.run(["perf", "report", "-i", str(data), "--no-children", "-F", "overhead,comm,symbol", "--stdio",
                                 "-g", "none"], capture_output=True, text=True).stdout
    idle = busy = core = 0.0
    for line in report.splitlines():
        found = re.match(r"\s*([\d.]+)%\s+(\S+)\s+(.*)", line)
        if found:
            share, comm, symbol = float(found[1]), found[2], found[3]
            if comm.startswith("swapper"):
                idle += share
            else:
                busy += share
                core += share if "larder_core" in symbol else 0
    if not busy:
        return {"skipped": (done.stderr or report)[-300:]}
    row = {"of_a_punted_handoff": core / busy, "busy": busy / 100}
    say(f"dispatcher: {row}")
    return row


def flood(lab, program, plain, own, rate, seconds):
    """Clients while SYNs come by the front-end's wire from addresses that nobody has. Their answers go nowhere."""
    binary = lab.work / "flood"
    run("cc", "-O2", "-o", str(binary), str(HERE / "flood.c"))
    rows = {}
    for name in ["cookie", "haproxy"] * FLOODS:
        with System(lab, name, plain, own) as system:
            arguments = dict(address=VIP, port=80, connections=256, keep=False, paths=paths("1KB"), rate=500)
            load(lab, program, seconds=1, **arguments)
            process = system.process
            flows = lambda: metric(lab, "larder_switch_handoff_connections") if name == "cookie" else None
            quiet = load(lab, program, seconds=seconds, **arguments)
            row = {"connections_before": flows(), "rss_before": process.rss_bytes()}
            # Answers to those addresses end at the hub, as they would at the first router.
            lab.swallow(FLOOD_MAC)
            command = lab.from_outside(binary, lab.front.port, FLOOD_MAC, lab.front.mac, VIP, 80, rate, seconds + 1)
            storm = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            time.sleep(0.5)
            meter = Meter(lab, system.processes())
            a = meter.look()
            loud = load(lab, program, seconds=seconds, **arguments)
            row["front_busy"] = Meter.between(a, meter.look(), 1)["front_busy"]
            row["flood"] = json.loads(storm.communicate(timeout=seconds + 20)[0])
            row |= {"quiet": quiet, "loud": loud, "rss_after": process.rss_bytes(), "connections_after": flows(),
                    "faults_quiet": faults(quiet), "faults_loud": faults(loud)}
            rows.setdefault(name, []).append(row)
            say(f"flood {name}: p99 {quiet['p99_us']:.0f} -> {loud['p99_us']:.0f} us, p50 {quiet['p50_us']:.0f} -> "
                f"{loud['p50_us']:.0f}, faults {row['faults_quiet']} -> {row['faults_loud']}, RSS {row['rss_before']} -> "
                f"{row['rss_after']}, SYNs/s {row['flood']['sent'] / row['flood']['seconds']:.0f}, front busy {row['front_busy']:.2f}")
    for name, runs in rows.items():
        ratios = [row["loud"]["p99_us"] / row["quiet"]["p99_us"] for row in runs]
        say(f"flood {name}: p99 times {statistics.median(ratios):.2f} (median of {[round(r, 2) for r in ratios]})")
    return rows


PARTS = {"latency": latency, "handoffs": handoffs, "forwarding": forwarding, "dispatcher": dispatcher_share}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--only", default=",".join([*PARTS, "flood"]))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--syns", type=int, default=106_000, help="SYNs a second of the flood, if there is time for all")
    parser.add_argument("--json")
    args = parser.parse_args()
    results = {"machine": machine(), "lard": LARD}
    with Lab(4, args.larder) as lab:
        program, root = build_load(lab.work), files(lab.work / "root")
        plain, own = [(f"n{i}", lab.nodes[i]) for i in (0, 1)], [(f"n{i}", lab.nodes[i]) for i in (2, 3)]
        for name, host in plain:
            nginx_node(lab, host, name, root)
        for name, host in own:
            larder_node(lab, host, name, root)
        for part in args.only.split(","):
            if part == "flood":
                results[part] = flood(lab, program, plain, own, args.syns, args.seconds)
            else:
                results[part] = PARTS[part](lab, program, plain, own, args.seconds)
    print(json.dumps(results, indent=1))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
