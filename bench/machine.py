"""Prints the name under which results of this machine are filed."""

import os
import pathlib
import platform
import re


def machine():
    """A folder name: the processor and the number of cores."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", info)
    name = f"{model.group(1) if model else platform.machine()} {len(os.sched_getaffinity(0))} cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    print(machine())
