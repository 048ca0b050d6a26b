#!/usr/bin/env python3
"""Routers of prompts side by side, in front of simulated inference servers that others wrote.

    cargo build --release -p larder
    bench/prompts/run.py --engine PATH [--routers larder,smg]

`PATH` is the program of llm-d-inference-sim, which answers OpenAI's API and keeps a cache of blocks as vLLM does. The other routers
come from PyPI: `pip install smg sglang-router vllm-router`. `least-load` is larder without prefixes; `larder-8` are eight switches that
share the requests, and `larder-8-isolated` the same without knowing each other. Without one of them, its row is left out, with a
message.

Eight engines run on this machine. Clients hold conversations of several turns: a turn has all turns before it, and conversations of
one application share a system prompt. The engines delay each request by its own tokens; with `--sequences 1` a request also waits for
those before it. Rounds are interleaved; engines and routers are restarted for each, so every cache is cold at
the start. Measured for each router: the time to the first token, the share of prompt tokens that engines found in their caches
(their own counters), and the CPU time of the router per request.
"""

import argparse
import asyncio
import atexit
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

TICKS = os.sysconf("SC_CLK_TCK")
ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "simulated"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, probe, limit=60):
    deadline = time.monotonic() + limit
    while True:
        try:
            if probe():
                return
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > deadline:
            sys.exit(f"not within {limit} s: {what}")
        time.sleep(0.05)


def page(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
        return reply.read().decode()


class Process:
    """A process group that ends with this program."""

    def __init__(self, command, log, environment=None):
        self.process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                        start_new_session=True, env={**os.environ, **(environment or {})})
        atexit.register(self.end)

    def pids(self):
        """Returns the processes of the group."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.getpgid(int(entry.name)) == self.process.pid:
                        found.append(entry)
                except ProcessLookupError:
                    pass
        return found

    def cpu_s(self):
        total = 0
        for entry in self.pids():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Engines:
    """The simulated inference servers."""

    def __init__(self, args, log):
        self.ports = [free_port() for _ in range(args.engines)]
        self.processes = [Process([args.engine, "--port", port, "--model", MODEL, "--mode", "random", "--enable-kvcache",
                                   "--kv-cache-size", args.cache_tokens // 16, "--block-size", 16, "--max-num-seqs", args.sequences,
                                   "--max-model-len", 400_000, "--max-request-body-size-mb", 64, "--latency-calculator", "per-token",
                                   "--prefill-overhead", "5ms", "--prefill-time-per-token", f"{args.prefill_us}us",
                                   "--inter-token-latency", "2ms", "--time-factor-under-load", 2 if args.sequences > 1 else 1,
                                   *args.engine_argument],
                                  log, {"POD_IP": "127.0.0.1"}) for port in self.ports]
        for port in self.ports:
            wait_for(f"the engine at port {port} is ready", lambda port=port: page(port, "/v1/models"))

    def counter(self, name):
        """Returns a counter of vLLM's metrics, summed over all engines."""
        total = 0.0
        for port in self.ports:
            for line in page(port, "/metrics").splitlines():
                if line.startswith((name + "{", name + " ")):
                    total += float(line.rsplit(" ", 1)[1])
        return total

    def end(self):
        for process in self.processes:
            process.end()


def start_larder(args, engines, folder, log, policy, switches=1, share=True):
    """Starts switches, and returns their ports and processes."""
    ports, peers = [free_port() for _ in range(switches)], [free_port() for _ in range(switches)]
    nodes = ", ".join(f'"127.0.0.1:{engine}"' for engine in engines.ports)
    key = folder / "switches.key"
    if switches > 1 and not key.exists():
        subprocess.run([args.larder, "keys", "new", key], check=True, stdout=log)
    processes = []
    for at, port in enumerate(ports):
        config = folder / f"larder-{at}.toml"
        seeds = ", ".join(f'"127.0.0.1:{peer}"' for peer in peers)
        others = (f'[switch.switches]\nname = "s{at}"\nlisten = "127.0.0.1:{peers[at]}"\nsecret = "{key}"\nseeds = [{seeds}]\n'
                  if switches > 1 and share else "")
        config.write_text(
            f'[switch]\nlisten = "127.0.0.1:{port}"\nnodes = [{nodes}]\n[[switch.routes]]\nname = "llm"\npath = "/v1/*"\n'
            f'prompts = {{ policy = "{policy}", server_tokens = {args.cache_tokens} }}\n{others}[admin]\nlisten = "127.0.0.1:0"\n')
        processes.append(Process([args.larder, "switch", "--config", config, "--log", "warn"], log))
    return ports, processes


def start_other(command):
    def start(args, engines, folder, log):
        port = free_port()
        urls = [f"http://127.0.0.1:{engine}" for engine in engines.ports]
        return [port], [Process([*command, "--worker-urls", *urls, "--policy", "cache_aware", "--host", "127.0.0.1", "--port", port,
                                 "--prometheus-port", free_port()], log)]
    return start


ROUTERS = {
    "larder": lambda *of: start_larder(*of, "lard-prefix"),
    "larder-8": lambda *of: start_larder(*of, "lard-prefix", 8),
    "larder-8-isolated": lambda *of: start_larder(*of, "lard-prefix", 8, share=False),
    "least-load": lambda *of: start_larder(*of, "least-load"),
    "smg": start_other(["smg", "launch", "--log-level", "warn"]),
    "sglang": start_other(["sglang-router", "launch", "--log-level", "warn"]),
    "vllm": start_other(["vllm-router", "--log-level", "warning"]),
}


class Conversation:
    """A conversation: a system prompt of its application, and turns."""

    def __init__(self, number, args, seed):
        # A draw of its own, so that the order in which replies end does not change the workload.
        self.draw, self.args = random.Random(f"{seed}/{number}"), args
        application = number % args.applications
        self.messages = [{"role": "system", "content": self.words(f"a{application}", args.system_tokens)},
                         {"role": "user", "content": self.words(f"c{number}", args.user_tokens)}]
        self.number = number

    @staticmethod
    def words(seed, tokens):
        return " ".join(f"{seed}.{at}" for at in range(max(1, tokens // 4)))

    def body(self):
        return json.dumps({"model": MODEL, "messages": self.messages, "stream": True, "max_tokens": self.args.reply_tokens}).encode()

    def answer(self, turn, reply):
        self.messages += [{"role": "assistant", "content": reply},
                          {"role": "user", "content": self.words(f"c{self.number}t{turn}", self.args.user_tokens)}]


async def complete(port, body):
    """Sends a completion. Returns the seconds to the first token, and the reply's text."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    first, text = None, []
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r}: {(await reader.read(2000))!r}")
    while line := await reader.readline():
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        content = event["choices"][0]["delta"].get("content") if event.get("choices") else None
        if content:
            first = first or time.monotonic() - began
            text.append(content)
    writer.close()
    return first or time.monotonic() - began, "".join(text)


async def converse(ports, conversation, args, times):
    await asyncio.sleep(conversation.draw.uniform(0, args.spread_s))
    for turn in range(args.turns):
        first, reply = await complete(conversation.draw.choice(ports), conversation.body())
        times.append(first)
        conversation.answer(turn, reply)
        await asyncio.sleep(conversation.draw.expovariate(1 / args.think_s))


async def converse_all(ports, args, seed):
    times = []
    conversations = [Conversation(number, args, seed) for number in range(args.conversations)]
    await asyncio.gather(*(converse(ports, conversation, args, times) for conversation in conversations))
    return times


def run(router, args, folder, log, seed):
    """Runs all conversations through a router. Returns its figures; None if it does not start."""
    engines = Engines(args, log)
    try:
        ports, processes = ROUTERS[router](args, engines, folder, log)
    except FileNotFoundError as error:
        engines.end()
        log.write(str(error).encode())
        log.flush()
        return None
    try:
        for port, process in zip(ports, processes):
            wait_for(f"{router} serves", lambda: process.process.poll() is not None or page(port, "/v1/models"), 60)
            if process.process.poll() is not None:
                return None
        time.sleep(args.settle_s)
        cpu_s = lambda: sum(process.cpu_s() for process in processes)
        before = cpu_s()
        idle_from = time.monotonic()
        times = asyncio.run(converse_all(ports, args, seed))
        took, cpu = time.monotonic() - idle_from, cpu_s() - before
        hits, queries = (engines.counter(f"vllm:prefix_cache_{what}_total") for what in ("hits", "queries"))
        return {"ttft_ms": statistics.mean(times) * 1e3, "p50_ms": statistics.median(times) * 1e3,
                "p99_ms": sorted(times)[int(len(times) * 0.99)] * 1e3, "hits": hits / max(queries, 1) * 100,
                "cpu_ms": cpu / len(times) * 1e3, "requests": len(times), "seconds": took}
    finally:
        for process in processes:
            process.end()
        engines.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help="the program of llm-d-inference-sim")
    parser.add_argument("--engine-argument", action="append", default=[], help="a further argument of each engine")
    parser.add_argument("--larder", default=ROOT / "target/release/larder")
    parser.add_argument("--routers", default=",".join(ROUTERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=64,
                        help="requests that an engine computes at once; with 1, prompts wait for each other as on one device")
    parser.add_argument("--cache-tokens", type=int, default=64_000, help="of one engine")
    parser.add_argument("--prefill-us", type=int, default=200, help="microseconds for each token without a cache")
    parser.add_argument("--conversations", type=int, default=96)
    parser.add_argument("--applications", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--system-tokens", type=int, default=2_000)
    parser.add_argument("--user-tokens", type=int, default=400)
    parser.add_argument("--reply-tokens", type=int, default=20)
    parser.add_argument("--think-s", type=float, default=1.5)
    parser.add_argument("--spread-s", type=float, default=5.0)
    parser.add_argument("--settle-s", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not shutil.which(args.engine):
        sys.exit(f"{args.engine} is no program: build llm-d-inference-sim and name its binary")
    routers = args.routers.split(",")
    unknown = [router for router in routers if router not in ROUTERS]
    if unknown:
        sys.exit(f"unknown router {unknown[0]}: use one of {', '.join(ROUTERS)}")
    results = {router: [] for router in routers}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for number in range(args.rounds):
            for router in routers:
                with open(folder / f"{router}.log", "ab") as log:
                    figures = run(router, args, folder, log, number)
                if figures is None:
                    print(f"{router} does not start: {(folder / f'{router}.log').read_text()[-300:]}", file=sys.stderr)
                    continue
                results[router].append(figures)
                print(f"round {number + 1}: {router}: {json.dumps({key: round(value, 2) for key, value in figures.items()})}",
                      file=sys.stderr)
    medians = {router: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for router, runs in results.items() if runs}
    if args.json:
        print(json.dumps(medians, indent=2))
        return
    print(f"{'router':<18}{'first token':>12}{'p50':>9}{'p99':>9}{'hits':>9}{'router CPU':>13}   (medians of {args.rounds} rounds)")
    for router, row in medians.items():
        print(f"{router:<18}{row['ttft_ms']:>9.0f} ms{row['p50_ms']:>6.0f} ms{row['p99_ms']:>6.0f} ms{row['hits']:>7.1f} %"
              f"{row['cpu_ms']:>10.2f} ms")


if __name__ == "__main__":
    main()
