#!/usr/bin/env python3
"""prism_chunk (L = 1) beside torch_chunk_gated_delta_rule of Hugging Face transformers: same work, one process.

    pip install torch==2.11.0 transformers==5.24.0
    python benchmarks/hf_gated_delta_rule.py [--threads 2] [--seconds 3] [--json FILE]

The public function is called unwrapped (its wrapper looks for a kernel on the hub). Both sides get unit q and k, the
same beta and log-gates; ours gets the write beta v, theirs makes it. The results are compared before any timing, and
both run with the allocator setting of docs/op.md, for which the program starts itself again.
"""

import argparse
import inspect
import json
import os
import sys
import time
from pathlib import Path

ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import prism  # noqa: E402
import torch  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next  # noqa: E402

theirs = inspect.unwrap(modeling_qwen3_next.torch_chunk_gated_delta_rule)
SHAPES = [(128, 50, 2, 32), (128, 200, 2, 32), (128, 400, 2, 32), (1, 4096, 6, 128), (8, 2048, 6, 128)]


def problem(B, T, H, K):
    torch.manual_seed(1)

    def unit():
        x = torch.randn(B, T, H, K)
        return (x / x.norm(dim=-1, keepdim=True)).requires_grad_()

    q, k = unit(), unit()
    v = torch.randn(B, T, H, K, requires_grad=True)
    beta = torch.rand(B, T, H).requires_grad_()
    g = (-0.1 * torch.rand(B, T, H)).requires_grad_()
    return q, k, v, beta, g


def run_theirs(q, k, v, beta, g):
    return theirs(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=False)[0]


def run_ours(q, k, v, beta, g):
    return prism.prism_chunk(q, k.unsqueeze(2), (beta.unsqueeze(-1) * v).unsqueeze(2), beta, g)[0]


def gradients(function, inputs, upstream):
    return torch.autograd.grad(function(*inputs), inputs, upstream)


def compare(shape):
    B, T, H, K = shape
    inputs = problem(min(B, 2), T, H, K)
    upstream = torch.randn(min(B, 2), T, H, K)
    pairs = zip(
        [run_ours(*inputs), *gradients(run_ours, inputs, upstream)],
        [run_theirs(*inputs), *gradients(run_theirs, inputs, upstream)],
        strict=True,
    )
    for ours, other in pairs:
        error = ((ours - other).norm() / other.norm()).item()
        if not error < 1e-4:  # theirs is fp32 throughout
            sys.exit(f"the two disagree at {shape}: {error:.1e}")


def median_times(sides, seconds):
    times = [[] for _ in sides]
    for side in sides:
        side()
    end = time.perf_counter() + seconds
    while len(times[0]) < 5 or (time.perf_counter() < end and len(times[0]) < 200):
        for side, record in zip(sides, times):
            start = time.perf_counter()
            side()
            record.append(time.perf_counter() - start)
    return [1e3 * sorted(record)[len(record) // 2] for record in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3, help="time for each row")
    parser.add_argument("--json", help="write the rows to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    print(f"{options.threads} threads, fp32, medians in ms")
    print(f"{'B,T,H,K=V':>13} {'pass':>8} | {'prism':>8} {'hf':>8} | {'hf/prism':>8}")
    for shape in SHAPES:
        compare(shape)
        inputs = problem(*shape)
        upstream = torch.randn(*shape)
        for name in ("forward", "fwd+bwd"):

            def side(function, train=name == "fwd+bwd", values=inputs, d_o=upstream):
                if train:
                    return lambda: gradients(function, values, d_o)
                return torch.no_grad()(lambda: function(*values))

            ours, other = median_times([side(run_ours), side(run_theirs)], options.seconds)
            text = ",".join(map(str, shape))
            print(f"{text:>13} {name:>8} | {ours:8.2f} {other:8.2f} | {other / ours:7.1f}x", flush=True)
            rows.append(dict(shape=shape, passes=name, prism_ms=ours, hf_ms=other, threads=options.threads))
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
