#!/usr/bin/env python3
"""Compares the modelled engines of `larder sim prompts` with kernels that others measured on GPUs.

    cargo build --release -p larder
    git clone https://github.com/microsoft/vidur
    bench/prompts/profile.py --vidur vidur

Vidur (MLSys'24) has profiles of models on NVIDIA's A100: the time of each operator of a layer for a number of tokens, of the calls between
devices, and of attention. Their sum is the time of an iteration without the output projection and the scheduler; the model's overhead is
left out too. Without the file of attention, which is large, those rows are left out.
"""

import argparse
import collections
import csv
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROFILES = pathlib.Path("data/profiling")
# Engines, and the model, devices, and network of the profile.
ENGINES = {
    "llama3-8b-a100": ("meta-llama/Meta-Llama-3-8B", 1),
    "llama2-70b-8xa800": ("meta-llama/Llama-2-70b-hf", 8),
}
CHUNK = 1_024


def rows(path):
    with open(path, newline="") as file:
        yield from csv.DictReader(file)


def median_ms(row, operator):
    return float(row[f"time_stats.{operator}.median"] or 0)


class Profile:
    """Measured times in ms."""

    def __init__(self, folder, model, devices, engine):
        self.layers, self.hidden = engine["layers"], engine["hidden"]
        compute = folder / PROFILES / "compute/a100" / model
        self.linear_ms = {}
        for row in rows(compute / "mlp.csv"):
            if int(row["num_tensor_parallel_workers"]) != devices:
                continue
            operators = {key.split(".")[1] for key in row if key.startswith("time_stats.")} - {"emb"}
            layer = sum(median_ms(row, operator) for operator in operators)
            self.linear_ms[int(row["num_tokens"])] = self.layers * layer + median_ms(row, "emb")
        self.call_ms = {}
        if devices > 1:
            sizes = collections.defaultdict(list)
            for row in rows(folder / PROFILES / "network/a100_dgx/all_reduce.csv"):
                if int(row["num_workers"]) == int(row["devices_per_node"]) == devices:
                    sizes[int(row["size"])].append(median_ms(row, "all_reduce"))
            self.call_ms = {size: sorted(times)[len(times) // 2] for size, times in sizes.items()}
        self.attention = {}
        path = compute / "attention.csv"
        if path.exists():
            for row in rows(path):
                if int(row["num_tensor_parallel_workers"]) != devices:
                    continue
                shape = (int(row["batch_size"]), int(row["prefill_chunk_size"]), int(row["kv_cache_size"]))
                part = "attn_prefill" if shape[1] else "attn_decode"
                self.attention[shape] = self.layers * (median_ms(row, part) + median_ms(row, "attn_kv_cache_save"))

    def tokens_ms(self, tokens):
        """All of an iteration but attention."""
        calls = 0.0
        if self.call_ms:
            size = tokens * self.hidden * 2
            calls = 2 * self.layers * self.call_ms[min(self.call_ms, key=lambda known: abs(known - size))]
        return self.linear_ms[tokens] + calls


def modelled_ms(engine, prefill=0, decode=0, context=0, pairs=0.0, with_attention=True):
    """The formula of crates/larder-sim/src/prompts/model.rs, without the overhead."""
    operations = 2 * engine["parameters"] * (prefill + decode)
    if with_attention:
        operations += 4 * engine["layers"] * engine["hidden"] * pairs
    bandwidth = engine["bandwidth"] * engine["memory_efficiency"]
    compute = operations / (engine["peak_flops"] * engine["compute_efficiency"])
    cache = engine["kv_bytes"] * context / bandwidth if with_attention else 0
    return 1e3 * (max(compute, engine["weight_bytes"] / bandwidth) + cache)


def compare(engine, profile):
    """Yields a label, the measured and the modelled time in ms."""
    for tokens in (1, 16, 64, 128, 256, 512, 1_024, 2_048, 4_096):
        if tokens in profile.linear_ms:
            yield f"{tokens:,} tokens, no attention", profile.tokens_ms(tokens), modelled_ms(
                engine, prefill=tokens, with_attention=False)
    for prompt in (2_048, 8_192, 16_384):
        starts = range(0, prompt, CHUNK)
        if all((1, CHUNK, start) in profile.attention for start in starts):
            measured = sum(profile.tokens_ms(CHUNK) + profile.attention[1, CHUNK, start] for start in starts)
            modelled = sum(
                modelled_ms(engine, prefill=CHUNK, context=start, pairs=CHUNK * (start + CHUNK / 2)) for start in starts)
            yield f"prompt of {prompt:,} tokens", measured, modelled
    sequences, context = 128, 352
    if (sequences, 0, context) in profile.attention:
        measured = profile.tokens_ms(sequences) + profile.attention[sequences, 0, context]
        yield f"{sequences} replies after {context:,} tokens", measured, modelled_ms(
            engine, decode=sequences, context=sequences * context)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", type=pathlib.Path, default=ROOT / "target/release/larder", help="the larder to run")
    parser.add_argument("--vidur", type=pathlib.Path, required=True, metavar="DIR", help="a checkout of Vidur")
    options = parser.parse_args()
    if not (options.vidur / PROFILES).is_dir():
        sys.exit(f"profile.py: --vidur {options.vidur}: has no {PROFILES}")
    for name, (model, devices) in ENGINES.items():
        command = [options.larder, "sim", "prompts", "--agents", "0.01", "--nodes", "1", "--policies", "rr", "--json", "--engine", name]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"profile.py: {done.stderr.strip()}")
        engine = json.loads(done.stdout)["comparisons"][0]["engine"]
        profile = Profile(options.vidur, model, devices, engine)
        print(f"\n{name}: modelled against measured time of an iteration")
        for label, measured, modelled in compare(engine, profile):
            print(f"{label:34} {measured:9.2f} ms {modelled:9.2f} ms  {100 * (modelled / measured - 1):+5.0f} %")


if __name__ == "__main__":
    main()
