#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""README's table of flags is whole: every flag that `cddprun --help` names is in it, and the other way round.

    readme.py CDDPRUN README [FLAG]      FLAG: pretend that README has a row for this flag too (the check must fail)
"""
import re
import subprocess
import sys

help_text = subprocess.run([sys.argv[1], "--help"], capture_output=True, text=True, check=True).stdout
readme = open(sys.argv[2], encoding="utf-8").read()
has = set(re.findall(r"^  --([a-z_]+)", help_text, re.M))
rows = [line.split("|")[1] for line in readme.replace("\\|", "/").splitlines() if line.startswith("| `--")]
told = {flag for row in rows for flag in re.findall(r"`--([a-z_]+)", row)} | set(sys.argv[3:])
for flag in sorted(has - told):
    print(f"README.md does not tell of --{flag}")
for flag in sorted(told - has):
    print(f"README.md tells of --{flag}, which cddprun does not have")
print(f"{len(has)} flags, {len(told)} in README.md")
sys.exit(0 if has == told and has else 1)
