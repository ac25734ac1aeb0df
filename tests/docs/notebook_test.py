#!/usr/bin/env python3
"""notebook_test.py SOURCE BUILD: runs the cells of docs/barestep.ipynb with the programs of a build, and shows what the
last line of each gives, as a notebook does."""

import ast
import json
import os
import pathlib
import sys
import tempfile


def main():
    source, build = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    os.environ["BARESTEP_BUILD"] = str(build)
    sys.path.insert(0, str(source / "python"))
    cells = json.loads((source / "docs" / "barestep.ipynb").read_text(encoding="utf-8"))["cells"]
    names, shown = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for cell in cells:
            if cell["cell_type"] != "code":
                continue
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "cell", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
                shown += len(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)) > 0
        os.chdir("/")
    barestep = names["barestep"]
    assert shown == 6, shown
    assert names["large"]["speed_ups"][-1]["speed_up"] > 2 > names["small"]["speed_ups"][-1]["speed_up"]
    parts = names["account"]["accounts"][0]
    assert abs(sum(parts["parts_s"].values()) - parts["wall_s"]) < 1e-9
    assert "<table>" in names["account"]._repr_html_() and "<svg" in names["small"]._repr_html_()
    try:
        barestep.run(["--dim", "no"])
        raise AssertionError("a wrong option was taken")
    except barestep.Error as error:
        assert error.code == 2 and str(error).startswith("mlp_single: error: --dim 'no'"), error
    print(f"{shown} values shown")


main()
