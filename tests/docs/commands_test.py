#!/usr/bin/env python3
"""commands_test.py SOURCE BUILD: runs every command in README.md and docs/*.md and compares its output.

A fenced block is an example if it has lines that begin with "$ ". The lines up to the next such line are
the expected output; a line "..." matches any lines. Numbers, times, sizes and the processor's name are
masked, because they differ between runs. A block may be preceded by

    <!-- test: --steps 1000 -> --steps 10 -->    the test replaces the left text in the commands by the right one

once or several times, to shorten a long run. A fenced block with commands that lack "$ " is an error. The
working directory is a new folder with links to what the commands name.

A block ```cpp is a quotation: its text must stand in a source of src/.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

COMMAND = re.compile(r"\$ (.*)")
MARKER = re.compile(r"<!-- test: (.+?) -> (.*?) -->")
NAKED = re.compile(r"(build/)?mlp_(single|dp|ddp|lab) |\. scripts/mpi_env|mpirun ")
# Lines that depend on the machine: the weights' last bits, which update is faster, whether its rates are known, its number
# of cores, what else it does, and what is concluded only where that is little.
MACHINE = re.compile(r"Weights: |--update auto |Oversubscribed: |  Update  |  Floor |\S+: note: |Other programs took "
                     r"|The bottleneck is |Backward takes ")


def examples(text):
    """The fenced blocks with commands: first line's number, replacements, [(command, output lines or [])]."""
    found, lines, replacements, index = [], text.splitlines(), [], 0
    while index < len(lines):
        line = lines[index]
        if MARKER.fullmatch(line):
            replacements.append(MARKER.fullmatch(line).groups())
        elif line.startswith("```"):
            end = lines.index("```", index + 1)
            steps = parse(lines[index + 1:end], index + 2)
            if steps:
                found.append((index + 2, replacements, steps))
            replacements, index = [], end
        elif line.strip():
            replacements = []
        index += 1
    return found


def parse(block, first):
    steps, continued = [], False
    for offset, line in enumerate(block):
        if continued:
            steps[-1][0] += "\n" + line
        elif COMMAND.fullmatch(line):
            steps.append([COMMAND.fullmatch(line)[1], []])
        elif not steps:
            if NAKED.match(line) and ": error: " not in line and ": note: " not in line:
                sys.exit(f"line {first + offset}: a command without '$ ', so nothing runs it: {line}")
        else:
            steps[-1][1].append(line)
        continued = bool(steps) and not steps[-1][1] and line.endswith("\\")
    return steps


def mask(line):
    line = re.sub(r"(AMD|Intel)\S*( \S+)*?(?=, \d+ threads?)", "CPU", line)
    line = re.sub(r"products by [^,]*", "products by LIBRARY", line)
    line = re.sub(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]\d+)?", "#", line)
    line = re.sub(r"# ?(ns|us|ms|s|B|KiB|MiB|GiB)\b", "#", line)
    line = re.sub(r"(?<!\S)(--|-)(?!\S)", "#", line)
    return re.sub(r"[-\s]+", " ", line).strip()


def masked(lines):
    kept = [mask(line) for line in lines if not MACHINE.match(line)]
    return [line for line in kept if line]


def chunks(shown):
    """The shown lines, split at "..."; empty parts mean that the output may continue there."""
    parts = [[]]
    for line in shown:
        if line.strip() == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    return [masked(part) for part in parts]


def missing(shown, real):
    """The first shown line that is missing in the output, or nothing."""
    parts, real, place = chunks(shown), masked(real), 0
    for index, part in enumerate(parts):
        starts = range(place, len(real) - len(part) + 1)
        if index == 0:
            starts = range(0, 1)
        elif index == len(parts) - 1 and part:
            starts = range(max(place, len(real) - len(part)), len(real) + 1)
        best, at = -1, None
        for start in starts:
            same = 0
            while same < len(part) and start + same < len(real) and part[same] == real[start + same]:
                same += 1
            if same > best:
                best, at = same, start
            if same == len(part):
                break
        if best < len(part):
            return part[max(best, 0)]
        place = (at or 0) + len(part)
    if len(parts) == 1 and place != len(real):
        return f"(the end; the output goes on with: {real[place]})"
    return None


def run(steps, replacements, folder, environment):
    """Runs the commands of a block one after the other; setup-only commands run together with the next one."""
    failures, setup = [], []
    unused = {old for old, _ in replacements}
    for command, shown in steps:
        for old, new in replacements:
            if old in command:
                unused.discard(old)
                command = command.replace(old, new)
        if re.match(r"\. |[A-Z]+=", command):
            setup.append(command)
            continue
        done = subprocess.run(["bash", "-c", "\n".join(setup + [command])], cwd=folder, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        fails = any(": error: " in line for line in shown)
        if (done.returncode != 0) != fails:
            failures.append(f"$ {command}\nends with {done.returncode}:\n{done.stdout[-2000:]}")
        elif shown and (line := missing(shown, done.stdout.splitlines())):
            failures.append(f"$ {command}\nlacks, masked: {line}\n{done.stdout}")
    return failures + [f"a marker replaces '{old}', which the block has not" for old in sorted(unused)]


def false_quotations(page, sources):
    """The first lines of a page's C++ blocks whose text is in no source."""
    blocks = re.findall(r"^```cpp\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block.splitlines()[0] for block in blocks if not any(block in text for text in sources)]


def self_check():
    """Checks that the comparison itself can fail."""
    real = ["Step 1 | 0.5 s", "a", "b", "wall time  3.25 ms  100.00 %"]
    assert missing(["Step 7 | 0.25 ms", "...", "wall time 5 us 99.0 %"], real) is None
    assert missing(["...", "b", "..."], real) is None
    assert missing(["Step 1 | 1 s"], real)
    assert missing(["...", "c", "..."], real) == "c"
    assert missing(["Epoch 1", "..."], real) == "Epoch #"
    assert missing(["Step 1 | 1 s", "...", "b"], real) == "b"


def main():
    source, build = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    self_check()
    environment = dict(os.environ, XDG_CACHE_HOME=str(build / "docs_cache"))
    failures, count = [], 0
    sources = [path.read_text(encoding="utf-8") for path in source.glob("src/**/*.cpp")]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("scripts", "tests", "src", "bench"):
            os.symlink(source / name, pathlib.Path(folder) / name)
        os.symlink(build, pathlib.Path(folder) / "build")
        for page in [source / "README.md", *sorted((source / "docs").glob("*.md"))]:
            for line in false_quotations(page, sources):
                failures.append(f"{page.relative_to(source)}: no source in src/ has this text: {line}")
            for line, replacements, steps in examples(page.read_text(encoding="utf-8")):
                text = "\n".join(command for command, _ in steps)
                if "mlp_ddp" in text and not (build / "mlp_ddp").exists():
                    continue
                count += len(steps)
                for failure in run(steps, replacements, folder, environment):
                    failures.append(f"{page.relative_to(source)}:{line}: {failure}")
    print(f"{count} commands")
    if failures:
        sys.exit("\n\n".join(failures))


main()
