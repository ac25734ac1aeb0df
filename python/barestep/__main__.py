"""`barestep train ...` is mlp_single, `barestep COMMAND ...` is mlp_lab."""

import os
import sys

from barestep import program


def main():
    """Becomes the program."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["train"]:
        os.execv(program("mlp_single"), ["mlp_single", *arguments[1:]])
    os.execv(program("mlp_lab"), ["mlp_lab", *arguments])


if __name__ == "__main__":
    main()
