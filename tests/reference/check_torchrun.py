#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddprun beside torchrun 2.13, flag by flag and variable by variable.

    check_torchrun.py CDDPRUN RECORD TABLE            run cddprun, compare with what torchrun did (RECORD), and TABLE must
                                                      be the table that comes of it
    check_torchrun.py CDDPRUN RECORD TABLE --write    write TABLE
    check_torchrun.py --record TORCHRUN RECORD [NAME] run torchrun and write RECORD anew (NAME: only these cases; minutes)
"""
import concurrent.futures
import difflib
import json
import os
import sys

from launcher_cases import CASES, WHY
from launcher_runs import run, take_signals

HEAD = """# cddprun beside torchrun

Made by `tests/reference/check_torchrun.py`: it compares every flag of torchrun 2.13 and every variable of a worker, on one machine
with four workers (1×4) and on two with two each (2×2). torchrun's side is recorded in `tests/data/torchrun-2.13.json`; the same script
repeats it where PyTorch is installed. A row shows the first case of a difference. What differs from run to run stands in angle
brackets. *refused* is a non-zero exit before any worker was started. Beside these variables cddprun sets `CDDP_FLIGHT` and
`CDDP_STOP_SIGNALS`, and `PYTHONFAULTHANDLER=1` for workers that are run by Python; torchrun sets neither.

"""


def read(path):
    with open(path, encoding="utf-8") as f:
        kept = json.load(f)
    return {key: kept["runs"][i] for key, i in kept["cases"].items()}


def write(kept, path):
    """Each run once, one a line."""
    runs = sorted({json.dumps(run, sort_keys=True) for run in kept.values()})
    places = {text: i for i, text in enumerate(runs)}
    cases = {key: places[json.dumps(run, sort_keys=True)] for key, run in kept.items()}
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"cases":\n' + json.dumps(cases, indent=0) + ',\n"runs": [\n' + ",\n".join(runs) + "]}\n")


def record(torchrun, path, names):
    kept = {}
    if names and os.path.exists(path):
        kept = read(path)
    wanted = [(case, layout) for case in CASES for layout in case.layouts if not names or case.name in names]
    known = {}
    for i, (case, layout) in enumerate(wanted, 1):
        same = repr((layout, case.args, case.program, case.env, case.sized, case.signal, case.meet and case.meet(layout)))
        if same not in known:
            known[same] = run([torchrun], case, layout)
        kept[f"{layout} {case.key()}"] = known[same]
        print(f"{i}/{len(wanted)} {layout} {case.key()}: {case.look(known[same])}", flush=True)
    keys = {f"{layout} {case.key()}" for case in CASES for layout in case.layouts}
    write({k: v for k, v in sorted(kept.items()) if k in keys}, path)


def which_why(case, layout):
    """The key of the reason for a difference of this case; None."""
    looked = case.look.__name__
    keys = [(case.key(), layout), (case.key(), looked), case.key(), (case.name, layout), (case.name, looked), case.name]
    return next((key for key in keys if key in WHY), None)


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def names(rows):
    """Of the rows' cases, each once: variables, and then the rest."""
    known = dict.fromkeys(case.name for case, *_ in rows)
    variables = [f"`{name.removeprefix('variable').lstrip(', ')}`" for name in known if name.startswith("variable")]
    return variables, [f"`{name}`" for name in known if not name.startswith("variable")]


def table(rows):
    """What differs, a row for each reason; and the names of what never does."""
    lines = ["## What differs", "", "| of | for example | layout | torchrun 2.13 | cddprun | why |", "|---|---|---|---|---|---|"]
    for reason in dict.fromkeys(reason for *_, reason in rows if reason):
        having = [row for row in rows if row[-1] == reason]
        case, layouts, theirs, ours, _ = having[0]
        lines.append(f"| {', '.join(sum(names(having), []))} | {cell(case.title)} | {', '.join(layouts)} | {cell(theirs)} | {cell(ours)} "
                     f"| {cell(reason)} |")
    same = [row for row in rows if row[2] == row[3]]
    variables, others = names([row for row in same if not any(row[0].name == other[0].name for other in rows if other[-1])])
    lines += ["", "## What is the same", "", f"{len(same)} of {len(rows)} comparisons gave the same. Those of these names all did:", "",
              f"- variables: {', '.join(variables)}", f"- flags and arguments: {', '.join(others)}", ""]
    return HEAD + "\n".join(lines)


def compare(cddprun, path):
    theirs = read(path)
    jobs, known = {}, {}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for case in CASES:
            for layout in case.layouts:
                same = repr((layout, case.args, case.program, case.env, case.sized, case.signal, case.meet and case.meet(layout)))
                if same not in known:
                    known[same] = pool.submit(run, [cddprun], case, layout)
                jobs[case, layout] = known[same]
    rows, bad = [], []
    for case in CASES:
        for layout in case.layouts:
            key = f"{layout} {case.key()}"
            if key not in theirs:
                bad.append(f"{key}: torchrun's side is not recorded (--record)")
                continue
            mine, other = jobs[case, layout].result(), theirs[key]
            ours, reference = case.look(mine), case.look(other)
            reason = ""
            if ours != reference:
                reason = WHY.get(which_why(case, layout), "")
            if ours != reference and not reason:
                bad.append(f"{key}: torchrun: {reference} | cddprun: {ours} ({'; '.join(filter(None, mine['said']))})")
            rows.append((case, [layout], reference, ours, reason))
    needed = {which_why(case, layouts[0]) for case, layouts, _, _, reason in rows if reason}
    bad += [f"{key}: there is a reason for a difference that is not there" for key in WHY if key not in needed]
    merged = []
    for row in rows:
        if merged and merged[-1][0] is row[0] and merged[-1][2:] == row[2:]:
            merged[-1][1].extend(row[1])
        else:
            merged.append(row)
    return merged, bad


def changed_lines(written, text):
    """What differs, a line each: - as it stands in the document, + as this run gives it."""
    lines = difflib.unified_diff(written.splitlines(), text.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def main(args):
    take_signals()
    if args[:1] == ["--record"]:
        return record(args[1], args[2], args[3:])
    rows, bad = compare(os.path.abspath(args[0]), args[1])
    text = table(rows)
    for line in bad:
        print(line)
    if args[3:] == ["--write"]:
        with open(args[2], "w", encoding="utf-8") as f:
            f.write(text)
    else:
        with open(args[2], encoding="utf-8") as f:
            written = f.read()
        if written != text:
            bad.append("")
            print(f"{args[2]} is out of date; --write brings it up to date:")
            print("\n".join(changed_lines(written, text)))
    print(f"{len(rows)} rows, {sum(1 for *_, reason in rows if reason)} differ for a reason, {len(bad)} unexplained")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
