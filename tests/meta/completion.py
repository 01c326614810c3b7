#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bash completion completes, and the man page has no mistake that man would tell of.    completion.py FILE MAN_PAGE"""
import shlex
import shutil
import subprocess
import sys

CASES = {
    ("cddprun", "--nproc"): "--nproc_per_node=",
    ("cddprun", "--numa-binding", "n"): "none node",
    ("cddprun", "--nproc_per_node", "=", "g"): "gpu",
    ("cddprun", "--on_failure", "=", "w"): "wait",
    ("cddprun", "--on_failure", "="): "stop wait",
    ("cddprun", "--standal"): "--standalone",
}
bad = 0
for words, expected in CASES.items():
    line = " ".join(map(shlex.quote, words))
    script = (f"source {shlex.quote(sys.argv[1])}; compopt() {{ :; }}; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); "
              "_cddprun; echo \"${COMPREPLY[*]}\"")
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=False)
    if done.stdout.strip() != expected or done.stderr:
        bad += 1
        print(f"{line}: {done.stdout.strip()!r}, not {expected!r} {done.stderr}")
if shutil.which("man"):
    page = subprocess.run(["man", "--warnings", "-l", sys.argv[2]], capture_output=True, text=True, check=False,
                          env={"LC_ALL": "C.UTF-8", "MANWIDTH": "100", "PATH": "/usr/bin:/bin"})
    if page.stderr or "--nproc_per_node" not in page.stdout:
        bad += 1
        print(f"the man page: {page.stderr or page.stdout[:500]}")
sys.exit(1 if bad else 0)
