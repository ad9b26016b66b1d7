"""What PyTorch (cuBLASLt, torch.topk) takes on the shapes of op_bench, as JSON lines: rivals for the same run.

Weights are BF16 copies (twice the bytes of the stored FP8), rotated over eight sets; medians of graph-free event timings
over batches of eight launches.
"""

import json
import statistics

import torch


def time_us(fn, sets, repeats=12):
    for i in range(3):
        fn(i % sets)
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for i in range(8):
            fn(i % sets)
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 1000 / 8)
    return statistics.median(times)


def main():
    torch.manual_seed(2)
    for n, k in ((1792, 5120), (32768, 1280), (5120, 8192), (25600, 6144)):
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
        for m in (1, 16, 64, 256, 4096):
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            us = time_us(lambda i: x @ weights[i].t(), 8)
            print(json.dumps({"rival": "torch bf16 matmul", "shape": f"{n}x{k}", "b": m, "med_us": round(us, 1)}), flush=True)
    for rows in (1, 64):
        for n in (16384, 65536):
            scores = torch.randn(rows, n, device="cuda")
            us = time_us(lambda i: torch.topk(scores, 512, dim=1, sorted=False), 1)
            print(json.dumps({"rival": "torch.topk 512", "shape": f"{n} keys", "b": rows, "med_us": round(us, 1)}), flush=True)


if __name__ == "__main__":
    main()
