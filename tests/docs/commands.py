#!/usr/bin/env python3
"""commands.py SOURCE_ROOT BUILD_FOLDER PAGE...: runs the commands that pages show, and compares outputs.

In a fenced block a line that begins with "$ ", "build/" or "./build/" is a command, "\\" at its end continues it, and
the lines below it are its output, of which "..." leaves out any number. Each line shown must be printed, in that
order; numbers, units and the names of processors and libraries may differ. A command that begins with ". " is
sourced before those below it. To be quick, --steps above 500 become 20. "# where there is no driver" runs only
there. Blocks of mlp_lab are not compared where the machine was too busy for a verdict.
Exit: 0; 1 where a command failed or printed something else; 77 where mpirun is missing.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

COMMAND = re.compile(r"^(\$ |(?=build/))")


def blocks_of(page):
    return re.findall(r"^```\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands_of(block):
    """Pairs of a command and the lines below it."""
    found = []
    lines = iter(block.splitlines())
    for line in lines:
        if COMMAND.match(line):
            command = COMMAND.sub("", line)
            while command.endswith("\\"):
                command = command[:-1] + next(lines).strip()
            found.append((command, []))
        elif found:
            found[-1][1].append(line)
    return found


def masked(line):
    line = re.sub(r"(cpu(?::\d+)?: ).*?(, \d+ threads?)", r"\1\2", line)
    line = re.sub(r"(, \d+ threads?), (products by )?.*$", r"\1", line)
    line = re.sub(r"(steps \d+ to \d+), .*$", r"\1", line)
    line = re.sub(r"-?\d[\d,.]*(e[+-]?\d+)?", "#", line)
    line = re.sub(r"# ([num]?s|[KMGT]?i?B|[KMGT]?FLOPs?)\b", "#", line)
    line = re.sub(r"#[num]?s\b", "#", line)
    line = re.sub(r"Total [KMGTP]?FLOPs", "Total FLOPs", line)
    line = re.sub(r"-{3,}", "-", line)
    return " ".join(line.split())


def missing_line(shown, printed):
    """The first of the shown lines that is not printed after those before it; None if there is none."""
    lines = [masked(line) for line in printed.splitlines()]
    at = 0
    for line in shown:
        if line.strip() in ("", "..."):
            continue
        try:
            at = lines.index(masked(line), at) + 1
        except ValueError:
            return line
    return None


def check(page, block, folder):
    setup = []
    for command, shown in commands_of(block):
        command, _, condition = command.partition("  #")
        if command.startswith(". "):
            setup.append(command)
            continue
        if "no driver" in condition and shutil.which("nvidia-smi"):
            continue
        command = re.sub(r"--steps (\d+)", lambda m: m[0] if int(m[1]) <= 500 else "--steps 20", command)
        script = " && ".join(setup + [command])
        done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        printed = done.stdout + done.stderr
        if shutil.which("nvidia-smi") is None:
            printed = re.sub(r"^\w+: note: training on the CPU:.*\n", "", printed, flags=re.MULTILINE)
        expects_error = any(re.match(r"\w+: error: ", line) for line in shown)
        if (done.returncode != 0) != expects_error:
            return f"{page.name}: '{command}' exits with {done.returncode}:\n{printed[-2000:]}"
        if "mlp_lab" in command and "INVALID" in printed:
            continue
        line = missing_line(shown, printed)
        if line is not None:
            return f"{page.name}: '{command}' does not print\n  {line}\nin that place, but\n{printed}"
    return None


def main():
    source, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    pages = [source / name for name in sys.argv[3:]]
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "build").symlink_to(build)
        for shared in ("tests", "scripts"):
            (folder / shared).symlink_to(source / shared)
        for page in pages:
            for block in blocks_of(page):
                if "mpirun" in block and not shutil.which("mpirun"):
                    print("skipped: mpirun was not found")
                    sys.exit(77)
                failure = check(page, block, folder)
                if failure:
                    failures.append(failure)
    print("\n\n".join(failures))
    sys.exit(1 if failures else 0)


os.environ.setdefault("XDG_CACHE_HOME", str(pathlib.Path(sys.argv[2]) / "cache"))
main()
