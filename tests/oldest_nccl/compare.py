#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare.py OLD NEW: checks that two programs print the same numbers (values.c, built with two headers)."""
import subprocess
import sys

old, new = ([line for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()]
            for program in sys.argv[1:3])
differ = [f'the list has "{a}", nccl.h "{b}"' for a, b in zip(old, new) if a != b]
if differ or len(old) != len(new) or len(old) < 40:
    sys.exit('\n'.join(differ) or f'{len(old)} and {len(new)} lines')
print(f'{len(old)} numbers are the same')
