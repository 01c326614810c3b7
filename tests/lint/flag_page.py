#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of flags in docs/cli.md is the one that the program's own table gives.

    flag_page.py FLAG_TEXTS PAGE [--write | LINE]    --write: put it there    LINE: pretend that the table has this line too
                                                    (the check must fail)
"""
import re
import subprocess
import sys

made = subprocess.run([sys.argv[1], "markdown"], capture_output=True, text=True, check=True).stdout
readme = open(sys.argv[2], encoding="utf-8").read()
parts = re.split(r"(?m)^(?=\| flag \|)|(?<=\|\n)(?=\n)", readme)
tables = [i for i, part in enumerate(parts) if part.startswith("| flag |")]
if len(tables) != 1:
    sys.exit(f"{sys.argv[2]} has {len(tables)} tables that begin with '| flag |', not one")
if sys.argv[3:] == ["--write"]:
    parts[tables[0]] = made
    open(sys.argv[2], "w", encoding="utf-8").write("".join(parts))
    sys.exit(0)
has, should = parts[tables[0]].splitlines(), made.splitlines() + sys.argv[3:]
for line in should:
    if line not in has:
        print(f"{sys.argv[2]} lacks: {line}")
for line in has:
    if line not in should:
        print(f"{sys.argv[2]} has, but the program does not: {line}")
print(f"{len(should) - 2} flags; to bring it up to date: {' '.join(sys.argv[:3])} --write")
sys.exit(0 if has == should else 1)
