#!/usr/bin/env python3
"""Gives out practical3 to 60 students, measures one variant, hands it in 60 times, which takes as long
to grade as 60 variants, and prints the times; called by bench/class.sh.

  class.py MLP_LAB
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

STUDENTS = 60


def timed(what, *command, **options):
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    print(f"{what:>40}: {time.perf_counter() - begin:.1f} s", flush=True)


def main():
    mlp_lab = os.path.abspath(sys.argv[1])
    load = pathlib.Path("/proc/loadavg").read_text().split()[0]
    print(f"# practical3 --quick, {STUDENTS} students; the machine's load over the minute before: {load}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "names.csv").write_text("".join(f"Student {i}\n" for i in range(STUDENTS)))
        timed("class new", mlp_lab, "class", "new", "practical3", "--students", "names.csv", "--machine",
              "t4", "--quick", cwd=folder)
        students = sorted((folder / "class/students").iterdir())
        timed("one student's run.sh", "sh", "run.sh", cwd=students[0], env={**os.environ, "MLP_LAB": mlp_lab})
        for each in students:
            shutil.copytree(students[0], folder / "handed-in" / each.name)
        timed("class grade", mlp_lab, "class", "grade", "class", "handed-in", cwd=folder)
        timed("class grade --rerun", mlp_lab, "class", "grade", "class", "handed-in", "--rerun", cwd=folder)


main()
