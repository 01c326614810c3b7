#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bash completions complete, and the man pages have a date and no mistake that man reports.

completion.py CDDPRUN'S_COMPLETION ITS_MAN_PAGE CDDP_RENDEZVOUS'_COMPLETION ITS_MAN_PAGE LIBCDDP'S_MAN_PAGE CDDP_BENCH'S
"""
import os
import re
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
    ("cddp-rendezvous", "--job"): "--job_ports=",
    ("cddp-rendezvous", "--plain-store", "n"): "never",
    ("cddp-rendezvous", "--http", "="): "auto never any",
    ("cddp-rendezvous", "--vers"): "--version",
}
FILES = {"cddprun": (sys.argv[1], sys.argv[2], "--nproc_per_node"), "cddp-rendezvous": (sys.argv[3], sys.argv[4], "--job_ports=A-B")}
bad = 0
for words, expected in CASES.items():
    line = " ".join(map(shlex.quote, words))
    script = (f"source {shlex.quote(FILES[words[0]][0])}; compopt() {{ :; }}; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); "
              f"_{words[0].replace('-', '_')}; echo \"${{COMPREPLY[*]}}\"")
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=False)
    if done.stdout.strip() != expected or done.stderr:
        bad += 1
        print(f"{line}: {done.stdout.strip()!r}, not {expected!r} {done.stderr}")
PAGES = {**{program: (path, flag) for program, (_, path, flag) in FILES.items()}, "libcddp": (sys.argv[5], "cddp_all_reduce()"),
         "cddp-bench": (sys.argv[6], "--warmup_iters")}
DATES = set()
for program, (path, _) in PAGES.items():
    with open(path, encoding="utf-8") as page:
        DATES.update(re.findall(r'^\.TH \S+ \d "(.*?)"', page.readline()))
if len(DATES) != 1 or not re.fullmatch(r"\d{4}-\d\d-\d\d", *DATES):
    bad += 1
    print(f"the man pages are of {DATES}")
DATE = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/lib/release_date.py")]
for epoch, expected in ("86399", "1970-01-01"), ("1700000000", "2023-11-14"):
    found = subprocess.run(DATE, capture_output=True, text=True, check=True, env={"SOURCE_DATE_EPOCH": epoch}).stdout
    if found != expected + "\n":
        bad += 1
        print(f"SOURCE_DATE_EPOCH={epoch}: {found}")
for program, (path, flag) in PAGES.items() if shutil.which("man") else []:
    page = subprocess.run(["man", "--warnings", "-l", path], capture_output=True, text=True, check=False,
                          env={"LC_ALL": "C.UTF-8", "MANWIDTH": "100", "PATH": "/usr/bin:/bin"})
    if page.stderr or flag not in page.stdout:
        bad += 1
        print(f"the man page of {program}: {page.stderr or page.stdout[:500]}")
sys.exit(1 if bad else 0)
