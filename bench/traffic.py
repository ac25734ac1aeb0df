"""Counts what ranks of mlp_ddp send and receive in a step; called by bench/traffic.sh.

Open MPI's component pml_monitoring writes, for each rank, how many bytes went to each other one, those of
collective operations included. A step's bytes are the difference of runs of 20 and of 10 steps, so what a run
sends at its start and end drops out. Every figure is in units of the gradients' bytes, at the busiest rank.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

DIM, DEPTH = 256, 8
GRADIENTS = 4 * DEPTH * (DIM * DIM + DIM)

EACH_LAYER = ("--bucket-mib", str(GRADIENTS / DEPTH / 2**20))  # so that servers have equally many buckets

# Options, and what the busiest of them sends and receives by the books.
CASES = {
    "ddp, a ring": ((), lambda n: 2 * (n - 1) / n),
    "server, one, star": (("--scheme", "server"), lambda n: n - 1),
    "server, one, tree": (("--scheme", "server", "--server-reduce", "tree"), None),
    "server, every rank": (("--scheme", "server", "--servers", "{n}", *EACH_LAYER), lambda n: 2 * (n - 1) / n),
    "zero1": (("--scheme", "zero1"), lambda n: 2 * (n - 1) / n),
    "zero2": (("--scheme", "zero2"), lambda n: 2 * (n - 1) / n),
    "zero3": (("--scheme", "zero3"), lambda n: (3 * DEPTH - 3) / DEPTH * (n - 1) / n),
    "factor": (("--scheme", "factor"), lambda n: factor(n)),
    "local, every 5th step": (("--sync-every", "5"), lambda n: 2 * (n - 1) / n / 5),
}
ROWS = 48  # of a step


def factor(n):
    """Each rank's rows of a layer's inputs and of the gradients of its outputs, to each other rank; but all
    have the first layer's inputs."""
    return (n - 1) * (ROWS / n) * (2 * DEPTH - 1) * DIM * 4 / GRADIENTS


def sent(program, ranks, options, steps):
    """Bytes from rank to rank of a whole run."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mpirun", "-np", str(ranks), "--mca", "pml_monitoring_enable", "1",
                   "--mca", "pml_monitoring_enable_output", "3",
                   "--mca", "pml_monitoring_filename", f"{folder}/sent", program,
                   "--device", "cpu", "--threads", "1", "--dim", str(DIM), "--depth", str(DEPTH),
                   "--global-batch-size", str(ROWS), "--steps", str(steps), "--update", "separate",
                   "--log-every", str(steps), *(each.format(n=ranks) for each in options)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        bytes_of = collections.Counter()
        for file in pathlib.Path(folder).iterdir():
            for line in file.read_text().splitlines():
                if line.startswith("# OSC"):
                    break
                found = re.match(r"[EI]\t(\d+)\t(\d+)\t(\d+) bytes", line)
                if found:
                    bytes_of[int(found[1]), int(found[2])] += int(found[3])
    if not bytes_of:
        sys.exit("traffic.sh: error: Open MPI counted nothing: its component pml_monitoring is missing; "
                 "install a build of Open MPI that has it")
    return bytes_of


def of_a_step(program, ranks, options):
    """What the rank that sends most sends in a step, and what the one that receives most receives."""
    few, many = (sent(program, ranks, options, steps) for steps in (10, 20))
    step = {pair: (many[pair] - few[pair]) / 10 for pair in many}
    sends = max(sum(count for pair, count in step.items() if pair[0] == rank) for rank in range(ranks))
    receives = max(sum(count for pair, count in step.items() if pair[1] == rank) for rank in range(ranks))
    return sends / GRADIENTS, receives / GRADIENTS


def main():
    parser = argparse.ArgumentParser(prog="traffic.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks (2,4)")
    parser.add_argument("--check", action="store_true",
                        help="fail where the books and the count differ by more than a hundredth")
    options = parser.parse_args()
    wrong = []
    print(f"# mlp_ddp of {DIM} x {DEPTH}, {ROWS} rows a step; times the gradients' bytes, in a step, at the "
          "busiest rank; counted by Open MPI")
    print(f"{'ranks':>5}  {'scheme':<22} {'by the books':>12} {'sends':>8} {'receives':>8}")
    for ranks in map(int, options.ranks.split(",")):
        for name, (scheme, books) in CASES.items():
            sends, receives = of_a_step(options.program, ranks, scheme)
            if books and max(abs(each / books(ranks) - 1) for each in (sends, receives)) > 0.01:
                wrong.append(f"{name} on {ranks} ranks")
            stated = f"{books(ranks):.3f}" if books else "-"
            print(f"{ranks:>5}  {name:<22} {stated:>12} {sends:>8.3f} {receives:>8.3f}", flush=True)
    if options.check and wrong:
        sys.exit("traffic.sh: error: counted bytes differ from the books': " + ", ".join(wrong))


if __name__ == "__main__":
    main()
