#!/usr/bin/env python3
"""What a value costs on a GPU, read from the kernels' machine code. Needs no GPU, and measures nothing.

    DIALECTS=/tmp/dialects cargo test -p burn-amp-dialects --features llvm     # writes C++ and PTX; `dialects` C++ alone
    pip install nvidia-cuda-nvrtc nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl triton
    python3 kernels-cubecl/benches/sass.py /tmp/dialects

From PyPI: NVRTC, ptxas (nvcc), CUDA's headers (runtime, cccl), and nvdisasm, which comes with triton. `--packages` names the folder if they were
installed with `pip install --target`. HIP's sources (`--arch gfx942`) take Debian's clang-19,
rocm-device-libs and libamdhip64-dev, and give registers, spills and occupancy.

How a row comes about:

- Registers, stack and spills are what the compiler reports. Occupancy is that of the kernel's own cubes.
- Basic blocks and their branches give the control flow. An edge back to a block that dominates it makes a loop. The main loop is
  the innermost one that loads from a tensor, as wide as any load: of all loops it makes the most turns.
- In a main loop, the way of one whole turn is counted, for each tensor. Where a branch depends on loaded values, it is the cheaper way: what
  is done for rare values is not counted, but the test for it is. Elsewhere it is the way that moves the most bytes and computes the
  most: not that of the end of a tensor.
- The fixed cost of a cube is all else on such a way from entry to exit, each instruction once: a cube pays it for each tensor that it has
  a chunk of. Its share is that of the instructions which a warp executes on the gradients of GPT-2 (124M, 148 tensors).
- A chip allows the least of what its pipes allow: all instructions at 4 warps a clock, ALU and FMA at their lanes. Memory allows
  0.9 of its bandwidth, which is what a copy reaches, over the bytes a value that the path loads and stores.
"""

import argparse
import collections
import ctypes
import json
import pathlib
import re
import subprocess
import sys
import tempfile

PLAN = pathlib.Path(__file__).parent.parent / "src/backends/cubecl/plan.rs"
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "u32": 4}
COPY = 0.9

# SMs, GHz at boost, lanes of an SM for ALU and FMA, threads that an SM issues for a clock, TB/s. NVIDIA's data sheets of A100 SXM 80 GB,
# H100 SXM5, H200 SXM and HGX B200 give bandwidths, and f32 rates of 19.5, 67, 67 and 75 TFLOP/s: the clock is that at which all lanes reach
# them. SMs: whitepapers on A100 (table 4) and H100 (table 3), which is H200's chip; of B200 chipsandcheese.com, "Nvidia's B200".
# Lanes: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions".
CHIPS = {
    "sm_80": {"A100": (108, 1.41, 64, 64, 128, 2.04)},
    "sm_90": {"H100": (132, 1.98, 64, 128, 128, 3.35), "H200": (132, 1.98, 64, 128, 128, 4.8)},
    "sm_100": {"B200": (148, 1.98, 64, 128, 128, 8.0)},
    # Registers alone.
    "gfx90a": {},
    "gfx942": {},
}
SHARED = {"sm_80": 164, "sm_90": 228, "sm_100": 228}

GPT2 = [50257 * 768, 1024 * 768, 768, 768] + 12 * [
    768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 3072 * 768, 768,
]  # fmt: skip


def plan(name):
    """Numbers that the launches are planned with."""
    found = re.search(rf"^const {name}: .* = ([\d_.=]+);", PLAN.read_text(), re.M)
    if not found:
        sys.exit(f"sass.py: {PLAN} has no {name}")
    return [int(number) for number in re.findall(r"\d+", found[1])]


def values_of_cubes(multiprocessors):
    """How many values the cubes of a pass over GPT-2's gradients are given of each tensor."""
    (tensors,), (cubes_of_each,), (chunks_of_each,), chunk_powers = map(plan, ("MAX_TENSORS", "CUBES", "CHUNKS", "CHUNK"))
    for first in range(0, len(GPT2), tensors):
        launch = GPT2[first : first + tensors]
        share = -(-sum(launch) // (chunks_of_each * multiprocessors))
        least, most = chunk_powers
        chunk = 1 << min(max((share - 1).bit_length(), least), most)
        chunks = [-(-values // chunk) for values in launch]
        cubes = min(sum(chunks), cubes_of_each * multiprocessors)
        for values, count in zip(launch, chunks):
            yield from min(count, cubes) * [values / min(count, cubes)]


# Instructions ---------------------------------------------------------------------------------------------------------

Instruction = collections.namedtuple(
    "Instruction", "pipe floats loads stores targets ends exits writes reads guards buffers address memory"
)
"""Its pipe, whether it computes with floats, bytes that it loads and stores of global memory, labels that it may jump to, whether the next one never follows,
whether a thread may end with it; what it writes, reads and is guarded by; buffers whose address it takes, by register; registers of the address it goes to; the memory it reads."""

ALU = re.compile(
    r"(IADD|VIADD|LOP|PLOP|ISETP|FSETP|HSETP|SEL|FSEL|FMNMX|IMNMX|VIMNMX|HMNMX|VHMNMX|SHF|SHL|SHR|PRMT|LEA|IABS|MOV|FCHK|P2R|R2P"
    r"|BMSK|SGXT|I2FP|F2FP|CS2R|VOTE|VABSDIFF)"
)
FLOAT = re.compile(r"(FFMA|FMUL|FADD|HFMA|HMUL|HADD)")
FMA = re.compile(r"(FFMA|FMUL|FADD|IMAD|HFMA|HMUL|HADD|IDP|FSWZADD)")
LSU = re.compile(r"(LDG|STG|LDS|STS|LDL|STL|LD\b|ST\b|ATOM|RED\b|SHFL)")
# Where kernel parameters begin in constant memory.
PARAMETERS = {"sm_80": 0x160, "sm_90": 0x210, "sm_100": 0x380}


def registers(first, count):
    kind, number = re.match(r"(\D+)(\d+)", first).groups()
    return [f"{kind}{int(number) + i}" for i in range(count)]


def nvidia_instruction(text, arch, pointers):
    guard, words = re.match(r"(@!?U?P\w+\s+)?(.*)", text).groups()
    name, _, rest = words.partition(" ")
    pipe = next((p for p, r in (("alu", ALU), ("fma", FMA), ("lsu", LSU)) if r.match(name)), "other")
    bits = next((int(b) for b in re.findall(r"\.(\d+)\b", name) if int(b) in (64, 128, 256)), None)
    bits = bits or next((b for s, b in ((".U16", 16), (".S16", 16), (".U8", 8), (".S8", 8)) if s in name), 32)
    jumps = name.startswith(("BRA", "BRX", "JMP", "CALL"))
    memory = name[:3] if name.startswith(("LDG", "LDS", "SHF")) and not name.startswith("SHF.") else ""
    find = lambda part: re.findall(r"\b(U?[RP]\d+)\b", part)
    operands = [o.strip() for o in rest.split(",")]
    writes = []
    if not jumps and not name.startswith(("ST", "RED", "BAR", "BSSY", "BSYNC", "EXIT", "WARPSYNC", "NOP")) and find(operands[0]):
        wide = bits // 32 if name.startswith(("LD", "ULD", "CS2R")) or bits == 64 else 2 if ".WIDE" in name else 1
        first = find(operands[0])[0]
        writes = registers(first, max(wide, 1)) if "P" not in first else [first]
    rest_of = operands[1:] if writes else operands
    if writes and len(operands) > 2 and re.fullmatch(r"U?P\d", operands[1]) and name.startswith(("IADD", "LEA", "ISETP", "FSETP", "PLOP")):
        writes, rest_of = writes + [operands[1]], operands[2:]
    elif writes and "P" in writes[0] and len(operands) > 2 and re.fullmatch(r"U?R\d+", operands[1]) and name.startswith(("LOP", "SHFL", "VOTE")):
        writes, rest_of = writes + [operands[1]], operands[2:]
    reads = find(re.sub(r"desc\[\w+\]", "", ",".join(rest_of)))
    offsets = [int(o, 16) - PARAMETERS[arch] for o in re.findall(r"c\[0x0\]\[(0x[0-9a-f]+)\]", rest)]
    offsets = [o // 8 for o in offsets if 0 <= o < 8 * pointers]
    per = [{o + i // 2 for o in offsets} for i in range(len(writes))] if name.startswith(("LDC", "ULDC")) else [set(offsets)] * len(writes)
    address = find(re.sub(r"desc\[\w+\]", "", "".join(re.findall(r"\[[^c]*\]", rest)))) if name.startswith(("LDG", "STG")) else []
    return Instruction(
        pipe,
        bool(FLOAT.match(name) and reads),
        bits // 8 if name.startswith("LDG") else 0,
        bits // 8 if name.startswith("STG") else 0,
        re.findall(r"(\.L_x_\d+)", rest) if jumps else [],
        name.startswith(("BRA", "BRX", "JMP", "EXIT", "RET")) and not guard and not re.search(r"\bU?P\d", rest),
        name.startswith("EXIT"),
        writes,
        reads,
        find(guard or "") + (reads if jumps else []),
        dict(zip(writes, per)),
        frozenset(address),
        memory,
    )


# Control flow ---------------------------------------------------------------------------------------------------------

Cost = collections.namedtuple("Cost", "total alu fma lsu other floats first moved")
ZERO = Cost(0, 0, 0, 0, 0, 0, 0, 0)
"""Instructions by pipe, bytes that are loaded of the first of a tensor's buffers, and bytes that are moved of all of them."""


def add(a, b):
    return Cost(*(x + y for x, y in zip(a, b)))


class Code:
    """Basic blocks of one kernel, and what the ways through them cost."""

    def __init__(self, lines, read, tensors=1, buffers=1):
        """`lines` are labels, which end in a colon, and instructions, which `read` reads.

        The kernel's first buffers are those of its tensors: the first ones of all of them, the second ones, and so on.
        """
        self.tensors, self.buffers = tensors, buffers
        self.blocks, self.next, labels, falls = [[]], [set()], {}, True
        for line in lines:
            label = line.endswith(":")
            last = self.blocks[-1][-1] if self.blocks[-1] else None
            if last and (label or last.targets or last.ends or last.exits):
                if not last.ends:
                    self.next[-1].add(len(self.blocks))
                self.blocks.append([])
                self.next.append(set())
            if label:
                labels[line[:-1]] = len(self.blocks) - 1
            else:
                self.blocks[-1].append(read(line))
        for block, instructions in enumerate(self.blocks):
            for one in instructions:
                self.next[block].update(labels[t] for t in one.targets if t in labels)
        self.order = self.reachable()
        self.place = {block: i for i, block in enumerate(self.order)}
        self.before = collections.defaultdict(list)
        for block in self.order:
            for other in self.next[block]:
                self.before[other].append(block)
        self.find_loops()
        self.follow_values()

    def of(self, buffers):
        """The tensors that these buffers belong to. Tables, rows and scalars belong to none."""
        return frozenset(b % self.tensors for b in buffers if b < self.tensors * self.buffers)

    def reachable(self):
        """Blocks, each after those that lead to it but by an edge back."""
        seen, result, stack = {0}, [], [(0, iter(sorted(self.next[0], reverse=True)))]
        while stack:
            block, rest = stack[-1]
            other = next(rest, None)
            if other is None:
                result.append(block)
                stack.pop()
            elif other not in seen:
                seen.add(other)
                stack.append((other, iter(sorted(self.next[other], reverse=True))))
        return result[::-1]

    def find_loops(self):
        """Blocks of each natural loop, by its header, and all edges back."""
        above, changed = {0: {0}}, True
        while changed:
            changed = False
            for block in self.order[1:]:
                new = set.intersection(*(above[b] for b in self.before[block] if b in above)) | {block}
                changed |= above.get(block) != new
                above[block] = new
        self.loops, self.back = collections.defaultdict(set), set()
        for block in self.order:
            for header in self.next[block] & above[block]:
                self.back.add((block, header))
                body, stack = {header, block}, [block]
                while stack:
                    at = stack.pop()
                    new = [b for b in self.before[at] if at != header and b not in body]
                    body.update(new)
                    stack += new
                self.loops[header] |= body

    def follow_values(self):
        """Which branches depend on loaded values, and which buffers a block goes to.

        What a register holds is a set: numbers of buffers, and "value" for what comes from the tensors.
        """
        state, self.rare, self.uses, shared = {0: {}}, set(), {}, set()
        queue = collections.deque(self.order)
        while queue:
            block = queue.popleft()
            held = {r: set(v) for r, v in state.get(block, {}).items()}
            uses = []
            for one in self.blocks[block]:
                seen = set().union(*(held.get(r, ()) for r in one.reads))
                if one.loads or one.stores:
                    buffers = set().union(*(held.get(r, ()) for r in one.address)) - {"value"}
                    uses.append((frozenset(buffers), one.loads, one.stores))
                if one.memory == "LDG":
                    seen = {"value"} if self.of(buffers) else set()
                elif one.memory == "LDS":
                    seen = set(shared)
                elif not one.writes and one.pipe == "lsu" and not one.stores and "value" in seen and not shared:
                    shared.add("value")
                    queue.extend(self.order)
                for register in one.writes:
                    new = seen | one.buffers.get(register, set())
                    kept = {"value"} & held.get(register, set()) if one.guards else set()
                    held[register] = new | kept
                if one.targets and "value" in set().union(*(held.get(r, ()) for r in one.guards)):
                    self.rare.add(block)
            self.uses[block] = uses
            for other in self.next[block]:
                known, grown = state.setdefault(other, {}), False
                for register, values in held.items():
                    if not values <= known.get(register, set()):
                        known[register] = known.get(register, set()) | values
                        grown = True
                if (grown or other not in self.uses) and other not in queue:
                    queue.append(other)

    def cost(self, block, tensor=None):
        """Of all instructions, and of the bytes that are moved where a turn is at this one of the tensors, or at any."""
        cost = ZERO
        for one in self.blocks[block]:
            cost = add(cost, Cost(1, *(one.pipe == p for p in ("alu", "fma", "lsu", "other")), one.floats, 0, 0))
        for buffers, loads, stores in self.uses[block]:
            # A block may hold the accesses to two tensors, of which one is switched off.
            if tensor is None or tensor in self.of(buffers):
                first = loads if any(b < self.tensors for b in buffers) else 0
                cost = add(cost, ZERO._replace(first=first, moved=loads + stores))
        return cost

    def touched(self, blocks):
        """Tensors that these blocks load from or store to."""
        return frozenset(t for x in blocks for buffers, _, _ in self.uses[x] for t in self.of(buffers))

    def way(self, blocks, ends, costs):
        """The way from the first block to one of the last, without edges back.

        Where a branch depends on values, it is the cheaper one. Else it is the one that does more: moves more bytes, or computes more.
        """
        best = {}
        for block in reversed(blocks):
            options = [best[o] for o in self.next[block] if o in best and (block, o) not in self.back]
            options += [ZERO] if block in ends else []
            if options and block in costs:
                rare = lambda c: c.total
                full = lambda c: (-c.moved, -c.floats, c.total)
                best[block] = add(costs[block], min(options, key=rare if block in self.rare else full))
        return best.get(blocks[0])

    def turns(self):
        """What a turn of the main loop costs, by tensor, and the main loops."""
        loading = {h: b for h, b in self.loops.items() if self.touched(b)}
        inner = {h: b for h, b in loading.items() if not any(h != o and o in b for o in loading)}
        found = {}
        for header, body in inner.items():
            blocks = sorted(body, key=self.place.get)
            for tensor in self.touched(body):
                own = [b for b in blocks if tensor in self.touched([b]) or not self.touched([b])]
                costs = {b: self.cost(b, tensor) for b in own}
                turn = self.way(blocks, {b for b in blocks if (b, header) in self.back}, costs)
                if turn and turn.first:
                    old = found.get(tensor)
                    if not old or turn.total / turn.first < old[1].total / old[1].first:
                        found[tensor] = (header, turn)
        return [turn for _, turn in found.values()], set().union(*(inner[h] for h, _ in found.values()))

    def row(self, size, arch, units):
        turns, inside = self.turns()
        if not turns:
            return {}
        per = lambda get: sum(get(t) * size / t.first for t in turns) / len(turns)
        costs = {b: ZERO if b in inside else self.cost(b) for b in self.order}
        exits = {b for b in self.order if any(one.exits for one in self.blocks[b])}
        fixed = self.way(self.order, exits, costs).total
        multiprocessors = next(iter(CHIPS[arch].values()))[0]
        work = [values * per(lambda t: t.total) / units for values in values_of_cubes(multiprocessors)]
        return {
            "bytes_per_load": max(loads for uses in self.uses.values() for _, loads, _ in uses),
            "values_per_turn": round(sum(t.first for t in turns) / len(turns) / size, 2),
            "instructions_per_value": round(per(lambda t: t.total), 2),
            **{f"{p}_per_value": round(per(lambda t: getattr(t, p)), 2) for p in ("alu", "fma", "lsu", "other")},
            "bytes_per_value": round(per(lambda t: t.moved), 2),
            "fixed_instructions": fixed,
            "fixed_share_gpt2": round(fixed * len(work) / (fixed * len(work) + sum(work)), 3),
        }


# Compilers ------------------------------------------------------------------------------------------------------------


STATES = {"sgd": 1, "adam": 2, "adamw": 3}


class Source:
    """A kernel's text, in C++ or in PTX, and what its name tells: `adam-f32-bf16-28x4.cu`."""

    def __init__(self, path):
        self.path, self.text, self.is_ptx = path, path.read_text(), path.suffix == ".ptx"
        self.kernel = path.name.split(".")[0]
        work, input_, output, shape = self.kernel.split("-")
        self.size, self.tensors = SIZES[input_], int(shape.split("x")[0])
        # A step has gradient, parameter, a master of one in half precision, and states.
        step = 2 + (output != "f32") + STATES.get(work, 0)
        self.buffers = step if work in STATES else 2 if work.startswith("write") else 1
        # Bytes, as the first line says.
        self.shared = int(re.match(r"// (\d+) bytes", self.text)[1])

    def units(self):
        """Threads of a cube."""
        bounds = r"\.(?:reqntid|maxntid) (\d+)" if self.is_ptx else r"__launch_bounds__\((\d+)\)"
        return int(re.search(bounds, self.text)[1])

    def pointers(self):
        """The kernel's first parameters: buffers."""
        if self.is_ptx:
            return len(re.findall(r"\.param \.u64", self.text[: self.text.index("{")]))
        parameters = re.search(r"__global__[^(]*\([^(]*\)\s+\w+\(([^)]*)\)", self.text)[1]
        return sum("*" in parameter for parameter in parameters.split(","))


class Nvidia:
    def __init__(self, packages):
        folders = [packages] if packages else [p for p in sys.path if p]
        find = lambda pattern: next((p for f in folders for p in sorted(pathlib.Path(f).glob(pattern))), None)
        library = find("nvidia/**/libnvrtc.so.*")
        self.ptxas = find("nvidia/**/bin/ptxas")
        self.nvdisasm = find("triton/backends/nvidia/bin/nvdisasm") or find("nvidia/**/bin/nvdisasm")
        header = find("nvidia/**/include/cuda_fp16.h")
        if not (library and self.ptxas and self.nvdisasm and header):
            packages = "nvidia-cuda-nvrtc nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl triton"
            sys.exit(f"not found: pip install {packages} (see --packages)")
        self.includes = [header.parent, header.parent / "cccl"]
        self.nvrtc = ctypes.CDLL(str(library))

    def get(self, what, program):
        size = ctypes.c_size_t()
        getattr(self.nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self.nvrtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    def compile(self, source, target):
        """What the compiler says, and machine code."""
        options = [f"--gpu-architecture={target}", "-lineinfo", "--ptxas-options=-v"]
        options += [f"--include-path={folder}" for folder in self.includes]
        program = ctypes.c_void_p()
        self.nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.text.encode(), b"kernel.cu", 0, None, None)
        encoded = [option.encode() for option in options]
        failed = self.nvrtc.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        log = self.get("ProgramLog", program).decode()
        if failed:
            sys.exit(f"{source.path.name}, {target}: {log}")
        code = self.get("CUBIN", program)
        self.nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        return log, code

    def assemble(self, source, target):
        """As the driver does with PTX."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            command = [self.ptxas, "-v", f"--gpu-name={target}", "-o", file.name, source.path]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode:
                sys.exit(f"{source.path.name}, {target}: {run.stderr}")
            return run.stderr, pathlib.Path(file.name).read_bytes()

    def row(self, source, arch):
        # As CubeCL's runtime asks for it.
        target = arch if arch == "sm_80" else f"{arch}a"
        log, code = (self.assemble if source.is_ptx else self.compile)(source, target)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(code)
            file.flush()
            text = subprocess.run([self.nvdisasm, "-c", file.name], check=True, capture_output=True, text=True).stdout
        lines = re.findall(r"^(\.L_x_\d+:)|^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", text, re.M)
        number = lambda pattern: sum(int(n) for n in re.findall(pattern, log))
        used, units, pointers = number(r"Used (\d+) registers"), source.units(), source.pointers()
        read = lambda one: nvidia_instruction(one, arch, pointers)
        code = Code([label or one for label, one in lines], read, source.tensors, source.buffers)
        return {
            "registers": used,
            "stack_bytes": number(r"(\d+) bytes stack frame"),
            "spill_bytes": number(r"(\d+) bytes spill"),
            "occupancy": nvidia_occupancy(arch, used, source.shared, units),
            **code.row(source.size, arch, units),
        }


def nvidia_occupancy(arch, registers, shared, units):
    """Of the 64 warps of an SM: registers go to warps by 256, 1 KiB of a cube's shared memory is CUDA's."""
    warps = -(-units // 32)
    by_registers = 65536 // (-(-registers // 8) * 8 * 32 * warps)
    return min(by_registers, SHARED[arch] * 1024 // (shared + 1024), 64 // warps) * warps / 64


class Amd:
    def __init__(self, _):
        # Debian's device libraries end at gfx940, whose instructions are gfx942's.
        self.folder = tempfile.TemporaryDirectory()
        here = pathlib.Path(self.folder.name)
        for file in pathlib.Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode").glob("*.bc"):
            for name in {file.name, file.name.replace("version_940", "version_942")}:
                (here / name).symlink_to(file)

    def row(self, source, arch):
        command = "clang++-19 -x hip --offload-device-only --rocm-path=/usr -O3 -std=c++17 -S -o - -include hip/hip_runtime.h -include hip/hip_fp16.h"
        options = [f"--rocm-device-lib-path={self.folder.name}", f"--offload-arch={arch}", "-"]
        # HIP RTC has no such types, clang has.
        text = re.sub(r"^typedef .* u?int\d+_t;$", "", source.text, flags=re.M)
        run = subprocess.run([*command.split(), *options], input=text, capture_output=True, text=True)
        if run.returncode:
            # Debian's HIP has no header for bf16.
            print(f"{source.path.name}, {arch}: {run.stderr.splitlines()[0]}", file=sys.stderr)
            return None
        text = run.stdout
        number = lambda key: int(re.search(rf"\.{key}:\s+(\d+)", text)[1])
        occupancy = re.search(r"; Occupancy: (\d+)", text)
        return {
            "registers": number("vgpr_count"),
            "scalar_registers": number("sgpr_count"),
            "stack_bytes": number("private_segment_fixed_size"),
            "spill_bytes": 4 * (number("vgpr_spill_count") + number("sgpr_spill_count")),
            "occupancy": int(occupancy[1]) / 8 if occupancy else None,
        }


# Those of C++ compile for any, PTX is written for one.
WAYS = {Nvidia: [("C++", "*.cu"), ("LLVM", "*.{}.ptx")], Amd: [("C++", "*.hip")]}

# Tables ---------------------------------------------------------------------------------------------------------------


def chips(arch, row):
    """10^12 values a second that a chip's pipes and its memory allow."""
    result = {}
    for name, (units, clock, alu, fma, issue, memory) in CHIPS[arch].items():
        lanes = [(issue, "instructions_per_value"), (alu, "alu_per_value"), (fma, "fma_per_value")]
        limits = [units * clock * 1e-3 * lane / row[key] for lane, key in lanes if row[key]]
        bytes_per_value = max(row["bytes_per_value"], 1e-9)
        result[name] = {"pipes": round(min(limits), 2), "memory": round(COPY * memory / bytes_per_value, 2)}
    return result


def show(arch, way, rows):
    names = list(CHIPS[arch])
    head = ["kernel", "registers", "stack", "spills", "occupancy", "bytes a load", "instructions", "ALU", "FMA", "LSU", "other", "fixed"]
    print(f"\n{arch}, {way}: instructions a value in the main loop; 10^12 values a second by pipes and by memory\n")
    print("| " + " | ".join(head + names) + " |")
    print("|---" + "|--:" * (len(head) + len(names) - 1) + "|")
    for row in rows:
        cells = [row["kernel"], row["registers"], row["stack_bytes"], row["spill_bytes"], f"{row['occupancy']:.0%}"]
        if "bytes_per_load" in row:
            cells += [row["bytes_per_load"]]
            cells += [f"{row[k]:.1f}" for k in ("instructions_per_value", "alu_per_value", "fma_per_value", "lsu_per_value", "other_per_value")]
            cells += [f"{row['fixed_share_gpt2']:.0%}"] + [f"{c['pipes']:.2f} of {c['memory']:.2f}" for c in row["chips"].values()]
        else:
            cells += ["-"] * (len(head) + len(names) - len(cells))
        print("| " + " | ".join(map(str, cells)) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=pathlib.Path, help="the folder of the kernels' sources")
    parser.add_argument("--arch", action="append", choices=CHIPS, help="may be repeated; sm_80, sm_90 and sm_100 if not given")
    parser.add_argument("--kernel", default="", help="only kernels whose name matches this regular expression")
    parser.add_argument("--json", type=pathlib.Path, help="write all rows to this file")
    parser.add_argument("--packages", type=pathlib.Path, help="the folder that PyPI's packages were installed to")
    options = parser.parse_args()
    result, compilers = [], {}
    for arch in options.arch or ["sm_80", "sm_90", "sm_100"]:
        make = Amd if arch.startswith("gfx") else Nvidia
        compiler = compilers.setdefault(make, None) or compilers.update({make: make(options.packages)}) or compilers[make]
        for way, ending in WAYS[make]:
            rows = []
            for path in sorted(options.sources.glob(ending.format(arch))):
                source = Source(path)
                found = compiler.row(source, arch) if re.search(options.kernel, source.kernel) else None
                if found:
                    chip = {"chips": chips(arch, found)} if "bytes_per_load" in found else {}
                    rows.append({"arch": arch, "compiler": way, "kernel": source.kernel, **found, **chip})
            if rows:
                show(arch, way, rows)
            result += rows
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
