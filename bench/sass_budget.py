#!/usr/bin/env python3
"""The cost of our kernels on an H200, calculated from their machine code without a GPU.

    bench/sass_budget.py [--check] [--nvcc PATH] [--cuobjdump PATH] [--json FILE]

The kernels of src/kernels/cuda/linear_adam.cuh are compiled for sm_90, and the instructions on their
straight path through one tile are counted: at a branch, the way with fewer slow paths (CALL) and marks of
rare places (PMTRIG) is taken, then the longer one. The printed times are those that a layer of 8192 x 8192
at a batch of 64 takes on each part of the machine; the longest bounds the kernel. Rates and the share of
the tensor peak are constants below, published or assumed, so every figure is calculated, not measured.

Flat kernels, which only move numbers, are listed with their 16-byte accesses and with the bytes that a
multiprocessor's threads have in flight.

--check fails if issue takes more of the memory's time than LIMIT allows, a product's loop spills, or a flat
kernel spills or lacks a 16-byte access. Exit: 0; 1 if a check failed or the code is not as expected; 77 if
nvcc or cuobjdump is missing.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYER, BATCH = 8192, 64

# An H200. Cycles of a scheduler that an instruction of one warp occupies its pipe: CUDA programming
# guide, throughput of compute capability 9.0 (128 FFMA, 64 integer and logic, 16 MUFU per clock and
# multiprocessor).
MULTIPROCESSORS, SCHEDULERS, GHZ = 132, 4, 1.98
SHARED_BYTES, REGISTERS, WARPS = 227 * 1024, 65536, 64
MEMORY_TB_S = 4.3  # reached by a copy
L2_TB_S = 5.5  # assumed
MMA_PART = 0.62  # share of the tensor peak that mma.sync reaches; assumed
LATENCY_NS = 800  # of a load from memory on a busy GPU; assumed
BYTES_PER_WEIGHT = 24  # weight and two moments, read and written; with 16 bits also the rounded weight
PIPES = {
    "FMA": ({"FFMA": 1, "FADD": 1, "FMUL": 1, "IMAD": 2}),
    "ALU": dict.fromkeys(
        "IADD3 LOP3 ISETP FSETP FSEL SEL PRMT SHF LEA FMNMX IMNMX VIADD VIMNMX PLOP3 R2P P2R FCHK MOV POPC "
        "BREV FLO".split(), 2),
    "MUFU": {"MUFU": 8},
    "tensor": {"HMMA": 4 / MMA_PART},
}

# name, product, rows and depth of its tile, its instruction, the number of them per warp and chunk,
# rows loaded ahead, the share of the time that they are in flight, limit of issue / memory, bytes
# of a number of its factors.
# The limit of fp32 is 0.75 because that is no loss: on an H200 its tiles of 32 rows, at 0.71, take 0.43 ms, those of
# 64 rows, at 0.63, took 0.50 ms.
KERNELS = [
    ("fp32 FMA", "FmaProduct<64>", 32, 64, "FFMA", 64 * 16, 4, 0.6, 0.75, 4),
    ("3xTF32, sums of 8", "TensorProduct<1>", 32, 64, "HMMA", 8 * 12, 4, 0.6, 0.55, 4),
    ("3xTF32, sums of 16", "TensorProduct<2>", 32, 64, "HMMA", 8 * 12, 4, 0.6, 0.55, 4),
    ("bf16, sums of 8", "TensorProduct<1, Bf16>", 32, 64, "HMMA", 8 * 4, 4, 0.6, 0.55, 2),
]
COLS, PAD_BYTES, THREADS = 128, 32, 256

# name, kernel, its threads, 16-byte loads and stores of a thread's pack, number of loads at once.
FLAT = [
    ("ReLU's gradient, fp32", "each_element<4>(std::int64_t, std::int64_t, ActivationGradElement<Relu, float>)", 256, 2, 1),
    ("ReLU's gradient, bf16", "each_element<8>(std::int64_t, std::int64_t, ActivationGradElement<Relu, Bf16>)", 256, 2, 1),
    ("bias and ReLU, fp32", "each_of_rows(std::int64_t, std::int64_t, BiasActivationPack<4, Relu>)", 256, 2, 1),
    ("dropout, fp32", "each_of_rows(std::int64_t, std::int64_t, DropoutPack<4, float>)", 256, 4, 4),
    ("dropout, bf16", "each_of_rows(std::int64_t, std::int64_t, DropoutPack<8, Bf16>)", 256, 4, 4),
    ("fp32 to bf16", "each_element<8>(std::int64_t, std::int64_t, CastElement<Bf16, float>)", 256, 2, 1),
    ("bf16 to fp32", "each_element<8>(std::int64_t, std::int64_t, CastElement<float, Bf16>)", 256, 1, 2),
    ("MSE, fp32", "pointwise_loss<4, true>(Partials, std::int64_t, LossElement<Mse, float>, LossTotal)", 256, 2, 1),
    ("MSE after ReLU, fp32", "pointwise_loss<4, true>(Partials, std::int64_t, LossElement<Mse, float, Relu>, LossTotal)", 256, 2, 1),
    ("MSE after ReLU, bf16", "pointwise_loss<8, true>(Partials, std::int64_t, LossElement<Mse, Bf16, Relu>, LossTotal)", 256, 3, 1),
    ("cross-entropy, fp32", "cross_entropy<4, true>(Partials, std::int64_t, CrossEntropyRow<float>, LossTotal)", 256, 1, 1),
    ("cross-entropy, bf16", "cross_entropy<8, true>(Partials, std::int64_t, CrossEntropyRow<Bf16>, LossTotal)", 256, 1, 1),
    ("ReLU's gradient and column sums, fp32", "activation_grad_sums<4, true>(float*, ActivationGradElement<Relu, float>, std::int64_t, std::int64_t, float)", 64, 8, 4),
    ("column sums, fp32", "sum_rows<4, true>(float*, const float*, std::int64_t, std::int64_t, float)", 64, 8, 0),
    ("column sums, bf16", "sum_rows<8, true>(float*, const Bf16*, std::int64_t, std::int64_t, float)", 64, 8, 0),
    ("overflow check, fp16", "check_finite<8>(std::int64_t, std::int64_t, const F16*, float*)", 256, 1, 0),
]
FLAT_SOURCE = """#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/reductions.cuh"
namespace barestep {
using Relu = ActivationFormula<Activation::kRelu>;
using Mse = LossFormula<LossKind::kMse>;
template __global__ void %s;
}
"""
WARPS_OF_BLOCK = THREADS // 32

SOURCE = """#include "kernels/cuda/linear_adam.cuh"
namespace barestep {
struct Marks { static __device__ __forceinline__ void rare() { asm volatile("pmevent 7;"); } };
using Kernel = %s;
static_assert(sizeof(LinearAdamShared<Kernel>) == %d);
template __global__ void linear_adam<Kernel, true, StraightArithmetic, Marks>(LinearAdamArrays<Kernel::Number>, AdamConstants);
}
"""


def fail(text):
    print(f"sass_budget: error: {text}", file=sys.stderr)
    sys.exit(1)


def skip(what):
    print(f"skipped: {what} was not found")
    sys.exit(77)


def find_cuobjdump(nvcc):
    """The cuobjdump of $CUOBJDUMP, next to nvcc, in PATH, or in the Triton of $PYTHON's PyTorch."""
    beside = pathlib.Path(os.path.realpath(shutil.which(nvcc))).parent / "cuobjdump"
    triton = "import triton; print(triton.__path__[0])"
    asked = subprocess.run([os.environ.get("PYTHON", "/usr/bin/python3"), "-c", triton], capture_output=True, text=True)
    brought = pathlib.Path(asked.stdout.strip()) / "backends/nvidia/bin/cuobjdump"
    for file in (os.environ.get("CUOBJDUMP"), beside, "cuobjdump", brought):
        if file and shutil.which(file):
            return shutil.which(file)
    return None


class Code:
    """A kernel's instructions, the straight path through them, and its loops."""

    def __init__(self, text):
        pattern = r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_.]+)([^;]*);"
        self.lines = []  # address, whether a predicate guards it, name, target of a branch
        for m in re.finditer(pattern, text):
            target = re.search(r"0x[0-9a-f]+\s*$", m[4].strip()) if m[3].startswith("BRA") else None
            self.lines.append((int(m[1], 16), bool(m[2]), m[3], int(target[0], 16) if target else None))
        self._walk()

    def _walk(self):
        index = {line[0]: i for i, line in enumerate(self.lines)}
        end = len(self.lines)
        best = [None] * end + [(0, 0, None)]  # rare places, minus the length, next
        loops = []
        for i in range(end - 1, -1, -1):
            address, guarded, name, target = self.lines[i]
            rare = name.startswith(("CALL", "PMTRIG"))
            if name.startswith(("EXIT", "RET")) and not guarded:
                best[i] = (rare, -1, None)
                continue
            ways = [i + 1]
            if target in index and target > address:
                ways = [index[target]] + ([i + 1] if guarded else [])
            elif target in index and index[target] < i:
                loops.append((index[target], i))
            chosen = min(ways, key=lambda way: best[way][:2])
            best[i] = (best[chosen][0] + rare, best[chosen][1] - 1, chosen)
        self.path, i = [], 0
        while i is not None and i < end:
            self.path.append(i)
            i = best[i][2]
        on_path = set(self.path)
        self.loops = [loop for loop in loops if loop[1] in on_path]

    def name(self, i):
        return self.lines[i][2].split(".")[0]

    def within(self, loop, name):
        return sum(1 for i in self.path if loop[0] <= i <= loop[1] and self.name(i) == name)

    def of_a_tile(self, instruction, needed):
        """Names and times of what a warp issues per tile, and the product's loop."""
        if not self.loops:
            fail("the kernel has no loop over tiles")
        tiles = max(self.loops, key=lambda loop: loop[1] - loop[0])
        inner = [loop for loop in self.loops if loop != tiles and self.within(loop, instruction) > 0]
        if len(inner) != 1:
            fail(f"the product is {len(inner)} loops")
        product = inner[0]
        found = self.within(product, instruction)
        # The epilogue's own FFMAs are the ones outside the loop.
        if needed % found != 0:
            fail(f"{found} {instruction} in the product's loop do not divide {needed}")
        counts = {}
        for i in self.path:
            if tiles[0] <= i <= tiles[1]:
                times = needed // found if product[0] <= i <= product[1] else 1
                counts[self.lines[i][2]] = counts.get(self.lines[i][2], 0) + times
        return counts, product


def wavefronts(counts):
    """128-byte rows of shared memory that a warp moves."""
    total = 0
    for name, times in counts.items():
        parts = name.split(".")
        if parts[0] in ("LDS", "STS", "LDGSTS"):
            total += times * (4 if "128" in parts else 2 if "64" in parts else 1)
    return total


def compile_kernel(nvcc, source, cubin):
    done = subprocess.run([nvcc, "-std=c++20", "--expt-relaxed-constexpr", "-O3", "-fmad=false", "-arch=sm_90",
                           f"-I{ROOT / 'src'}", "-Xptxas", "-v", "-cubin", "-o", cubin, source], capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"nvcc: {done.stderr}")
    return done


def bytes_needed():
    """Bytes in flight from memory per multiprocessor that hide the latency."""
    return MEMORY_TB_S * 1e12 / 2 * LATENCY_NS * 1e-9 / MULTIPROCESSORS


def budget(kernel, nvcc, cuobjdump, work):
    name, product, rows, depth, instruction, needed, ahead, part, limit, size = kernel
    exchanged = 0 if product.startswith("Fma") else 4 * rows * (COLS + 4)
    shared = 2 * depth * (size * (COLS + rows) + 2 * PAD_BYTES) + exchanged + 16
    moved = BYTES_PER_WEIGHT + (size if size < 4 else 0)
    source, cubin = work / "kernel.cu", work / "kernel.cubin"
    source.write_text(SOURCE % (product, shared))
    done = compile_kernel(nvcc, source, cubin)
    registers = int(re.search(r"Used (\d+) registers", done.stderr)[1])
    spilled = int(re.search(r"(\d+) bytes spill stores", done.stderr)[1])
    text = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    code = Code(text)
    counts, loop = code.of_a_tile(instruction, needed)
    in_product = sum(code.within(loop, spill) for spill in ("LDL", "STL"))

    weights = LAYER * LAYER
    tiles_per_sm = weights / (rows * COLS) / MULTIPROCESSORS
    issued = sum(counts.values())
    blocks = min(WARPS // WARPS_OF_BLOCK, REGISTERS // (THREADS * -(-registers // 8) * 8), SHARED_BYTES // (shared + 1024))

    def ms(cycles):  # of a scheduler, for one warp and tile
        return cycles * WARPS_OF_BLOCK / SCHEDULERS * tiles_per_sm / GHZ / 1e6

    times = {"memory": weights * moved / MEMORY_TB_S / 1e9, "issue": ms(issued)}
    for pipe, cycles in PIPES.items():
        times[pipe] = ms(sum(n * cycles.get(op.split(".")[0], 0) for op, n in counts.items()))
    times["shared memory"] = ms(4 * wavefronts(counts))
    factors = size * BATCH / COLS  # bytes of grad_y per weight
    times["L2"] = weights * (factors + moved / 2) / L2_TB_S / 1e9
    flight = 48 * ahead * THREADS * blocks * part
    return {
        "kernel": name, "registers": registers, "spilled_bytes": spilled, "spills_in_product": in_product,
        "shared_bytes": shared, "blocks": blocks, "instructions_per_weight": issued / (rows * COLS / THREADS),
        "ms": times, "bound_by": max(times, key=times.get), "issue_of_memory": times["issue"] / times["memory"],
        "limit": limit, "bytes_on_the_way": flight,
        "bytes_needed": bytes_needed()}


def flat_budget(kernel, nvcc, cuobjdump, work):
    name, signature, threads, loads, stores = kernel
    source, cubin = work / "flat.cu", work / "flat.cubin"
    source.write_text(FLAT_SOURCE % signature)
    done = compile_kernel(nvcc, source, cubin)
    text = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    code = {part.split("\n", 1)[0].strip(): part for part in text.split("Function :")[1:]}
    wanted = re.split("[<(]", signature)[0] + "I"  # a template, as mangled
    found = [mangled for mangled in code if wanted in mangled]
    if len(found) != 1:
        fail(f"{len(found)} kernels are {signature}")
    # ptxas prints a kernel's name, then its resources.
    own, sass = done.stderr.split(f"entry function '{found[0]}'")[1], code[found[0]]
    registers = int(re.search(r"Used (\d+) registers", own)[1])
    blocks = min(WARPS * 32 // threads, REGISTERS // (threads * -(-registers // 8) * 8), 32)
    return {"kernel": name, "registers": registers, "blocks": blocks,
            "spilled_bytes": int(re.search(r"(\d+) bytes spill stores", own)[1]),
            "wide_loads": len(re.findall(r"LDG\.E(?:\.\w+)*\.128", sass)),
            "wide_stores": len(re.findall(r"STG\.E(?:\.\w+)*\.128", sass)), "needs": [loads, stores],
            "bytes_on_the_way": blocks * threads * 16 * loads, "bytes_needed": bytes_needed()}


def print_flat_table(rows):
    print("\nFlat kernels: 16-byte accesses in the code, and bytes on the way of all threads of a multiprocessor\n")
    print("| kernel | registers | spilled B | blocks/SM | loads | stores | KiB on the way (needed) |")
    print("|" + "---|" * 7)
    for row in rows:
        print(f"| {row['kernel']} | {row['registers']} | {row['spilled_bytes']} | {row['blocks']} | {row['wide_loads']} | "
              f"{row['wide_stores']} | {row['bytes_on_the_way'] / 1024:.0f} ({row['bytes_needed'] / 1024:.0f}) |")


def broken_flat(row):
    loads, stores = row["needs"]
    if row["spilled_bytes"] > 0:
        yield f"{row['kernel']}: {row['spilled_bytes']} bytes are spilled"
    if row["wide_loads"] < loads or row["wide_stores"] < stores:
        yield f"{row['kernel']}: {row['wide_loads']} loads and {row['wide_stores']} stores of 16 bytes, fewer than {loads} and {stores}"
    if row["bytes_on_the_way"] < row["bytes_needed"]:
        yield f"{row['kernel']}: {row['bytes_on_the_way']} bytes on the way are too few for the memory"


def print_table(rows):
    print(f"Calculated, not measured: a layer of {LAYER} x {LAYER}, batch {BATCH}, on an H200 ({MULTIPROCESSORS} multiprocessors, "
          f"{GHZ} GHz, {MEMORY_TB_S} TB/s)\n")
    columns = ["instr./weight", "registers", "spilled B", "shared B", "blocks/SM", "KiB on the way (needed)"]
    parts = list(rows[0]["ms"])
    print("| kernel | " + " | ".join(columns + [f"{part} ms" for part in parts]) + " | issue / memory | bound by |")
    print("|" + "---|" * (len(columns) + len(parts) + 3))
    for row in rows:
        cells = [row["kernel"], f"{row['instructions_per_weight']:.0f}", row["registers"],
                 f"{row['spilled_bytes']} ({row['spills_in_product']} in the product)", row["shared_bytes"], row["blocks"],
                 f"{row['bytes_on_the_way'] / 1024:.0f} ({row['bytes_needed'] / 1024:.0f})"]
        cells += [f"{row['ms'][part]:.3f}" for part in parts]
        cells += [f"{row['issue_of_memory']:.2f} (limit {row['limit']:.2f})", row["bound_by"]]
        print("| " + " | ".join(map(str, cells)) + " |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--nvcc", default=shutil.which("nvcc"))
    parser.add_argument("--cuobjdump", default=None)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    if not arguments.nvcc or not shutil.which(arguments.nvcc):
        skip("nvcc")
    cuobjdump = arguments.cuobjdump or find_cuobjdump(arguments.nvcc)
    if not cuobjdump:
        skip("cuobjdump")
    with tempfile.TemporaryDirectory() as work:
        rows = [budget(kernel, arguments.nvcc, cuobjdump, pathlib.Path(work)) for kernel in KERNELS]
        flat = [flat_budget(kernel, arguments.nvcc, cuobjdump, pathlib.Path(work)) for kernel in FLAT]
    print_table(rows)
    print_flat_table(flat)
    if arguments.json:
        arguments.json.write_text(json.dumps({"calculated": True, "kernels": rows, "flat": flat}, indent=1) + "\n")
    broken = [text for row in flat for text in broken_flat(row)]
    for row in rows:
        if row["issue_of_memory"] > row["limit"]:
            broken.append(f"{row['kernel']}: issue takes {row['issue_of_memory']:.2f} of the memory's time, more than {row['limit']}")
        if row["spills_in_product"] > 0:
            broken.append(f"{row['kernel']}: {row['spills_in_product']} spills in the product's loop")
    if arguments.check and broken:
        fail("; ".join(broken))


main()
