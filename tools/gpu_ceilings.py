"""Ceilings of one GPU, as JSON lines: what every ratio of the same run is divided by.

Needs PyTorch on the GPU host. Data is random: a matrix product on zeros runs faster than real data will.
"""

import json
import statistics

import torch


def time_ms(fn, repeats=10, warm=3):
    for _ in range(warm):
        fn()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        fn()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return statistics.median(times)


def report(name, value, unit):
    print(json.dumps({"ceiling": name, "value": round(value, 2), "unit": unit}), flush=True)


def main():
    torch.manual_seed(1)
    dev = "cuda"
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    n = 4 << 30
    src = torch.randint(0, 255, (n,), dtype=torch.uint8, device=dev)
    dst = torch.empty_like(src)
    report("copy", 2 * n / time_ms(lambda: dst.copy_(src)) / 1e6, "GB/s read + written")
    words = src.view(torch.int64)
    report("read", n / time_ms(lambda: words.max()) / 1e6, "GB/s read")
    del src, dst, words

    def gemm(m, n, k):
        a = torch.randn(m, k, device=dev, dtype=torch.bfloat16)
        b = torch.randn(n, k, device=dev, dtype=torch.bfloat16)
        ms = time_ms(lambda: a @ b.t())
        return 2 * m * n * k / ms / 1e9

    report("bf16 gemm 8192x8192x8192", gemm(8192, 8192, 8192), "TFLOP/s")
    report("bf16 gemm 4096x32768x1280", gemm(4096, 32768, 1280), "TFLOP/s")


if __name__ == "__main__":
    main()
