"""Torch's unscaling of the gradient sets of `cargo bench -p burn-amp-kernels`, for its `--torch FILE`.

    OMP_WAIT_POLICY=passive python torch_peer.py > torch.json

Runs on CUDA if torch sees it, else on the CPU. The variable keeps its threads from fighting with other programs for
the cores.
"""

import argparse
import json
import statistics
import sys
import time

import torch


def gpt2():
    w = 768
    shapes = [(50257, w), (1024, w)]
    for _ in range(12):
        shapes += [(w,), (w,), (w, 3 * w), (3 * w,), (w, w), (w,)]
        shapes += [(w,), (w,), (w, 4 * w), (4 * w,), (4 * w, w), (w,)]
    return shapes + [(w,), (w,)]


def resnet50():
    shapes = []

    def convolution(output, input, size):
        shapes.extend([(output, input, size, size), (output,), (output,)])

    convolution(64, 3, 7)
    input = 64
    for blocks, width in [(3, 64), (4, 128), (6, 256), (3, 512)]:
        for block in range(blocks):
            convolution(width, input, 1)
            convolution(width, width, 3)
            convolution(4 * width, width, 1)
            if block == 0:
                convolution(4 * width, input, 1)
            input = 4 * width
    return shapes + [(1000, 2048), (1000,)]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seconds", type=float, default=10.0, help="for each set and dtype")
    options.add_argument("--large", type=int, default=1 << 28, help="elements of the large tensor")
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def sync():
        if device == "cuda":
            torch.cuda.synchronize()

    sets = {
        "gpt2-124m": gpt2(),
        "resnet-50": resnet50(),
        "mlp-1000": [(64, 64)] * 1000,
        "embedding": [(50257, 768)],
        "large": [(options.large,)],
    }
    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    rows = []
    for name, shapes in sets.items():
        for dtype_name, dtype in dtypes.items():
            parameters = []
            for shape in shapes:
                parameter = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
                parameter.grad = torch.empty(shape, dtype=dtype, device=device).uniform_(-0.5, 0.5)
                if name == "embedding":
                    zeros = torch.arange(shape[0], device=device) % 50 != 0
                    parameter.grad[zeros] = 0
                parameters.append(parameter)
            grads = [parameter.grad for parameter in parameters]
            found = torch.zeros(1, device=device)
            factor = torch.full((1,), -1.0, device=device)

            def unscale():
                torch._amp_foreach_non_finite_check_and_unscale_(grads, found, factor)
                return found.item()

            def unscale_clip():
                infinite = unscale()
                norm = torch.nn.utils.clip_grad_norm_(parameters, 1e9)
                return infinite, norm.item()

            def copy():
                copies = [grad.clone() for grad in grads]
                sync()
                return copies

            jobs = {"unscale": unscale, "unscale_clip": unscale_clip, "copy": copy}
            times = {job: [] for job in jobs}
            start = time.perf_counter()
            round = 0
            while round <= 3 or (round <= 101 and time.perf_counter() - start < options.seconds):
                for job, work in jobs.items():
                    sync()
                    begin = time.perf_counter()
                    kept = work()
                    seconds = time.perf_counter() - begin
                    del kept
                    if round > 0:
                        times[job].append(seconds)
                round += 1
            elements = sum(grad.numel() for grad in grads)
            for job, seconds in times.items():
                median = statistics.median(seconds)
                row = {"set": name, "dtype": dtype_name, "op": job, "elements": elements, "seconds": median}
                rows.append(row)
                print(f"{name} {dtype_name} {job}: {median * 1e3:.3f} ms", file=sys.stderr)
    result = {"torch": torch.__version__, "device": device, "threads": torch.get_num_threads(), "rows": rows}
    json.dump(result, sys.stdout, indent=1)
    print()


main()
