#!/usr/bin/env python3
"""headers_compile_alone.py SOURCE BUILD NAME [PATTERN]...: compiles each header of src, apps and tests
alone, but for those whose paths match a pattern. Takes the flags of the source whose path ends with NAME
from the build's compile_commands.json.

Most of what a header costs is what it includes. So clang precompiles a few that many others include.
A header that includes one of those anyway, directly or not, is compiled after it: nothing is visible
then that it does not include itself.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

# The largest first: a header is compiled after the first of them that it includes.
SHARED = ["session/session.h", "train/step.h", "core/config.h", "core/program.h", "core/ops.h"]


def included(header, root):
    """The project's headers that the header's own text includes."""
    for name in re.findall(r'^#\s*include "(.*)"', header.read_text(), re.MULTILINE):
        for folder in (root / "src", root / "tests", header.parent):
            if (folder / name).exists():
                yield pathlib.Path(os.path.normpath(folder / name))
                break


def reached(headers, root):
    """For each header those that it includes, directly or not."""
    direct = {header: set(included(header, root)) for header in headers}
    all_of = {}
    for header in headers:
        found, left = set(), [header]
        while left:
            new = direct.get(left.pop(), set()) - found
            found |= new
            left += new
        all_of[header] = found
    return all_of


def flags_of(build, name):
    """The command that compiles this object, without its source and object."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"].endswith(name):
            words = shlex.split(entry["command"])
            at = words.index("-o")  # the object, -c and the source
            return words[:at] + words[at + 4:]
    sys.exit(f"no command for '{name}' in {build}/compile_commands.json")


def main():
    root, build, name = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]), sys.argv[3]
    headers = sorted(path for folder in ("src", "apps", "tests") for path in (root / folder).rglob("*.h")
                     if not any(re.search(each, str(path.relative_to(root))) for each in sys.argv[4:]))
    compiler = flags_of(build, name) + [f"-I{root}/tests"]
    includes = reached(headers, root)
    is_clang = "clang" in subprocess.run([compiler[0], "--version"], capture_output=True, text=True, check=True).stdout
    precompiled = {}

    def compile_alone(header, more):
        done = subprocess.run(compiler + more, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else f"{header.relative_to(root)} does not compile alone:\n{done.stderr}"

    def check(header):
        after = next((shared for shared in precompiled if shared in includes[header]), None)
        more = ["-include-pch", precompiled[after]] if after else []
        return compile_alone(header, more + ["-fsyntax-only", "-include", str(header), "-x", "c++", os.devnull])

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = []
        for number, shared in enumerate(root / "src" / each for each in SHARED if is_clang):
            output = f"{folder}/{number}.pch"
            faults.append(compile_alone(shared, ["-x", "c++-header", str(shared), "-o", output]))
            precompiled[shared] = output
        faults += pool.map(check, headers)
    faults = [fault for fault in faults if fault]
    print("\n".join(faults) or f"{len(headers)} headers compile alone")
    sys.exit(1 if faults else 0)


main()
