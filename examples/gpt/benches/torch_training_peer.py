"""The training of `cargo bench -p gpt --bench training` under torch AMP, for its `--torch FILE`.

    python torch_training_peer.py --size gpt2 > torch.json

The same network, tokens, optimizer and steps; `autocast` and `GradScaler` in place of burn-amp. `tf32` is f32 whose products are tf32, as
CubeCL's are. Runs on CUDA if torch sees it, else on the CPU.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SIZES = {
    "tiny": (512, 32, 64, 4, 2, 4),
    "small": (8192, 256, 256, 8, 15, 8),
    "gpt2": (50257, 1024, 768, 12, 12, 8),
}
NAMES = ("vocabulary", "context", "width", "heads", "layers", "batch")
DTYPES = {"f32": None, "tf32": None, "f16": torch.float16, "f16-scaled": torch.float16, "bf16": torch.bfloat16}


class Block(nn.Module):
    """Burn's `TransformerEncoderLayer`, norms first."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        batch, length, width = x.shape
        normed = self.norm_2(x)

        def split(layer):
            return layer(normed).view(batch, length, self.heads, -1).transpose(1, 2)

        query, key, value = split(self.query), split(self.key), split(self.value)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.outer(functional.gelu(self.inner(self.norm_1(x))))


class Gpt(nn.Module):
    """The `Gpt` of examples/gpt, its last layer tied to the tokens' embedding."""

    def __init__(self, case, checkpointing):
        super().__init__()
        self.checkpointing = checkpointing
        width = case["width"]
        self.token = nn.Embedding(case["vocabulary"], width)
        self.position = nn.Embedding(case["context"], width)
        self.blocks = nn.ModuleList(Block(width, case["heads"]) for _ in range(case["layers"]))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False) if self.checkpointing else block(x)
        return functional.linear(self.norm(x).flatten(0, 1), self.token.weight)


def tokens(case, device):
    count = case["batch"] * case["context"]
    values = [((index * 2654435761 & 0xFFFFFFFF) >> 16) % case["vocabulary"] for index in range(count + 1)]
    values = torch.tensor(values, device=device)
    return values[:-1].view(case["batch"], case["context"]), values[1:]


class Trainer:
    def __init__(self, precision, case, device, options):
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        self.device, self.dtype = device, DTYPES[precision]
        self.model = Gpt(case, options.checkpointing).to(device)
        kind = {"fused": True} if options.fused or options.captured else {}
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-4, eps=1e-5, **kind)
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "f16-scaled")
        self.input, self.next = tokens(case, device)
        self.graph = None

    def backward(self):
        with torch.autocast(self.device, dtype=self.dtype, enabled=self.dtype is not None, cache_enabled=self.graph is None):
            logits = self.model(self.input)
        loss = functional.cross_entropy(logits.float(), self.next)
        self.scaler.scale(loss).backward()
        self.loss = loss.detach()

    def capture(self):
        """Forward and backward passes as one graph. The optimizer's step stays outside: the host decides whether it is taken."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.optimizer.zero_grad(set_to_none=True)
                self.backward()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            self.backward()

    def step(self):
        if self.graph:
            self.graph.replay()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            self.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


def launches(step):
    """The kernels of one step, copies and fills not among them, as CubeCL counts its own."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in kernels)


def forget(device):
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def most(device):
    if device == "cuda":
        return torch.cuda.max_memory_reserved()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def save(path, result):
    """With a file, each time: whoever stops the program keeps what was measured."""
    if path:
        with open(path + ".tmp", "w") as file:
            json.dump(result, file, indent=1)
        os.replace(path + ".tmp", path)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--size", choices=SIZES, default="tiny")
    for name in NAMES:
        options.add_argument(f"--{name}", type=int)
    options.add_argument("--precision", help="with commas between")
    options.add_argument("--fused", action="store_true", help="the optimizer is fused")
    options.add_argument("--captured", action="store_true", help="forward and backward passes are one graph, and the optimizer is fused")
    options.add_argument("--checkpointing", action="store_true", help="of each block's activations")
    options.add_argument("--steps", type=int, default=5, help="of a round that are timed")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", type=int, help="on the CPU")
    options.add_argument("--json", help="a file that has the rows so far; else they are printed at the end")
    options = options.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.captured and device == "cpu":
        sys.exit("torch captures no steps on the CPU")
    default = "f32,tf32,f16,f16-scaled,bf16" if device == "cuda" else "f32,f16,f16-scaled,bf16"
    case = {
        name: size if getattr(options, name) is None else getattr(options, name)
        for name, size in zip(NAMES, SIZES[options.size])
    }

    def sync():
        if device == "cuda":
            torch.cuda.synchronize()

    way = ["captured passes, fused Adam" if options.captured else "fused Adam" if options.fused else "Adam"]
    way += ["checkpointing"] * options.checkpointing
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    result = {"program": f"torch {torch.__version__}", "device": name, "way": ", ".join(way), "case": case, "parameters": 0}
    before = most(device)
    precisions = (options.precision or default).split(",")
    seconds = {precision: [] for precision in precisions}
    counted, peaks, losses = {}, dict.fromkeys(precisions, 0), {}

    def row(precision):
        own = statistics.median(seconds[precision])
        pairs = zip(seconds.get("f16", []), seconds[precision])
        shares = [1 - without / with_ for without, with_ in pairs] if precision == "f16-scaled" else []
        return {
            "precision": precision,
            "seconds": own,
            "tokens_per_second": case["batch"] * case["context"] / own,
            "scaler_share": statistics.median(shares) if shares else None,
            "launches": counted.get(precision),
            "peak_bytes": max(peaks[precision] - before, 0),
            "loss": losses[precision],
        }

    for _ in range(options.rounds):
        for precision in precisions:
            forget(device)
            trainer = Trainer(precision, case, device, options)
            result["parameters"] = sum(parameter.numel() for parameter in trainer.model.parameters())
            if options.captured:
                trainer.capture()
            for _ in range(2):
                trainer.step()
            sync()
            if device == "cuda":
                counted[precision] = launches(trainer.step)
            else:
                trainer.step()
            start = time.perf_counter()
            for _ in range(options.steps):
                trainer.step()
            sync()
            seconds[precision].append((time.perf_counter() - start) / options.steps)
            peaks[precision] = max(peaks[precision], most(device))
            losses[precision] = trainer.loss.item()
            del trainer
            result["rows"] = [row(precision) for precision in precisions if seconds[precision]]
            save(options.json, result)
    for one in result["rows"]:
        print(f"{one['precision']}: {one['tokens_per_second']:.0f} tokens/s, {one['seconds'] * 1e3:.2f} ms a step", file=sys.stderr)
    if not options.json:
        json.dump(result, sys.stdout, indent=1)
        print()


main()
