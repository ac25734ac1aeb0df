#!/usr/bin/env python3
"""faults.py: ranks of mlp_ddp that fail, and what becomes of their job, as a table of cells.

    faults.py --mlp-ddp build/mlp_ddp --faults build/tests/libmpi_faults.so [--ranks 2,4]
              [--in-turn] [--launcher mpirun|srun|namespaces] [--limit 1] [--jobs 8]

A cell is one phase with one fault. From the fault on, the job must end within the limit and 5 seconds,
with an exit code that is not 0, exactly one line `mlp_ddp: error:`, and no process of it left; between
two hosts within 10 seconds and with a line of each host at most. Ends with 1 if one did not.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ANYWHERE = ["exit0", "exit1", "kill9", "segv", "throw", "hang", "stop"]
CELLS = [(phase, fault) for phase in ("start", "first", "step", "end") for fault in ANYWHERE]
CELLS += [("first", "size"), ("step", "size"), ("start", "options")]
MARK = "BARESTEP_FAULT_CELL"


def launch(options, ranks, fault):
    """The command that starts one job. The rank that differs does so in a shell of its own."""
    rank, phase, kind = fault.split(":")
    run = [str(options.mlp_ddp), "--device", "cpu", "--threads", "1", "--dim", "8", "--depth", "1",
           "--steps", "20", "--timeout", str(options.limit)]
    job = ' '.join(map(shlex.quote, run))
    if kind == "options":
        job = f'test "${{OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}}" != {rank} || set -- --seed 7; exec {job} "$@"'
    else:
        job = f"export LD_PRELOAD={shlex.quote(str(options.faults))}; exec {job}"
    if options.launcher == "srun":
        return ["srun", "--mpi=pmix", "--overlap", "-n", str(ranks), "--overcommit", "sh", "-c", job]
    hosts = []
    if options.launcher == "namespaces":
        half = ranks // 2
        hosts = ["--mca", "plm_rsh_agent", str(HERE / "enter_namespace.sh"),
                 "-H", f"10.77.0.1:{ranks - half},10.77.0.2:{half}", "-x", MARK, "-x", "BARESTEP_FAULT"]
    command = ["mpirun", *hosts, "-np", str(ranks), "sh", "-c", job]
    if options.launcher == "namespaces":
        command = [str(HERE / "enter_namespace.sh"), "10.77.0.1", *map(shlex.quote, command)]
    return command


def processes_of(mark):
    """Ids of the processes whose environment names the cell, its launcher's included."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def run_cell(options, ranks, phase, kind):
    # Of two ranks the second fails, of more the first, which is the one that prints.
    rank = 1 if ranks == 2 else 0
    fault = f"{rank}:{phase}:{kind}"
    mark = f"{os.getpid()}.{options.launcher}.{ranks}.{phase}.{kind}"
    environment = dict(os.environ, **{MARK: mark, "BARESTEP_FAULT": fault})
    # Between hosts mpirun itself takes its time.
    most_s = options.limit + (10 if options.launcher == "namespaces" else 5)
    start = time.monotonic()
    job = subprocess.Popen(launch(options, ranks, fault), env=environment, text=True,
                           errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, start_new_session=True)
    wrong = []
    try:
        _, err = job.communicate(timeout=most_s + options.grace)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        _, err = job.communicate()
    seconds = time.monotonic() - start
    # From when the fault struck: a busy machine may take long to start the job.
    struck = re.search(r"^fault: struck at ([0-9.]+)$", err, re.MULTILINE)
    if struck:
        seconds = max(0, time.time() - float(struck[1]))
    if seconds > most_s:
        wrong.append(f"took more than {most_s:g} s")
    if job.returncode == 0:
        wrong.append("exit code 0")
    lines = [line for line in err.splitlines() if "mlp_ddp: error:" in line]
    # Before MPI has started and while it ends, two hosts cannot know of each other's words.
    if len(lines) not in ((1, 2) if options.launcher == "namespaces" else (1,)):
        wrong.append(f"{len(lines)} error lines")
    deadline = time.monotonic() + 2
    while processes_of(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = processes_of(mark)
    if left:
        wrong.append(f"{len(left)} processes left")
        for process in left:
            os.kill(process, signal.SIGKILL)
    return dict(ranks=ranks, phase=phase, fault=kind, seconds=seconds, code=job.returncode,
                lines=len(lines), line=lines[0] if lines else "", wrong=", ".join(wrong), err=err)


def boards():
    """Files that ranks share while they live."""
    return set(pathlib.Path(tempfile.gettempdir()).glob("ompi.*/*/barestep.*"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlp-ddp", type=lambda p: pathlib.Path(p).resolve(), required=True)
    parser.add_argument("--faults", type=lambda p: pathlib.Path(p).resolve(), required=True)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--launcher", choices=["mpirun", "srun", "namespaces"], default="mpirun")
    parser.add_argument("--limit", type=float, default=1)
    parser.add_argument("--grace", type=float, default=10, help="seconds before a cell is killed")
    parser.add_argument("--jobs", type=int, default=8, help="cells at a time")
    parser.add_argument("--in-turn", action="store_true", help="each cell with one of the ranks")
    options = parser.parse_args()
    before = boards()
    counts = [int(ranks) for ranks in options.ranks.split(",")]
    if options.in_turn:
        cells = [(counts[i % len(counts)], *cell) for i, cell in enumerate(CELLS)]
    else:
        cells = [(ranks, *cell) for ranks in counts for cell in CELLS]
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda cell: run_cell(options, *cell), cells))

    print(f"{options.launcher}, limit {options.limit:g} s")
    print("ranks  phase  fault    seconds  code  lines  said by the job")
    for cell in results:
        print(f"{cell['ranks']:5}  {cell['phase']:5}  {cell['fault']:7}  {cell['seconds']:7.2f}  "
              f"{cell['code']:4}  {cell['lines']:5}  {cell['line']}")
    failed = [cell for cell in results if cell["wrong"]]
    for cell in failed:
        print(f"WRONG: {cell['ranks']} ranks, {cell['phase']}, {cell['fault']}: {cell['wrong']}\n"
              f"{cell['err']}")
    # Those of other jobs, which go on meanwhile, go with them.
    left = boards() - before
    deadline = time.monotonic() + 20
    while left and time.monotonic() < deadline:
        time.sleep(0.2)
        left &= boards()
    if left:
        print(f"WRONG: files left: {', '.join(map(str, left))}")
    print(f"{len(results)} cells in {time.monotonic() - start:.1f} s, {len(failed)} wrong")
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
