#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each example does what it promises, and wine says what is wrong with a flag or a file.

    examples.py CDDPRUN BUILD/examples
"""
import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

failures = []


def run(command, env=None):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def expect(name, done, status=0, out=(), err=()):
    bad = [] if done.returncode == status else [f"exit status {done.returncode}, not {status}"]
    bad += [f"stdout lacks {want!r}" for want in out if not re.search(want, done.stdout)]
    bad += [f"stderr lacks {want!r}" for want in err if not re.search(want, done.stderr)]
    if status == 2 and len(done.stderr.splitlines()) != 1:
        bad.append("not one line")
    print("FAILED" if bad else "ok    ", name, flush=True)
    if bad:
        failures.append(name)
        print(*bad, done.stdout, done.stderr, sep="\n")


def ranks(cddprun, n, *command):
    return run([cddprun, "--standalone", f"--nproc_per_node={n}", *command])


def check_readme():
    """What README.md shows is the difference between the two programs, and it is short."""
    root = pathlib.Path(__file__).resolve().parents[2]
    files = [(root / "examples" / "line" / name).read_text().splitlines() for name in ("alone.c", "together.c")]
    diff = list(difflib.unified_diff(*files, "alone.c", "together.c", lineterm=""))
    shown = ["@@" if line.startswith("@@") else line.rstrip() for line in diff[2:]][1:]
    added = sum(line.startswith("+") for line in shown)
    good = "```diff\n" + "\n".join(shown) + "\n```" in (root / "README.md").read_text() and added <= 20
    print("ok    " if good else "FAILED", f"README.md shows how line/alone.c becomes line/together.c by {added} lines")
    if not good:
        failures.append("README.md")
        print("README.md must hold:", "```diff", *shown, "```", sep="\n")


def check_flags(wine):
    for flags, says in [
        (["--epochs", "0"], r"--epochs must be a whole number from 1 to 1000000, not '0'"),
        (["--epochs", "1x"], r"--epochs must be .*, not '1x'"),
        (["--batch-size=-3"], r"--batch-size must be .*, not '-3'"),
        (["--lr", "nan"], r"--lr must be a number above 0, not 'nan'"),
        (["--seed", "9223372036854775808"], r"--seed must be a whole number of 64 bits"),
        (["--dtype", "f16"], r"--dtype must be f32 or f64, not 'f16'"),
        (["--accumulate", "0"], r"--accumulate must be a whole number from 1 to 1000, not '0'"),
        (["--compress", "int8"], r"--compress must be fp16, bf16 or powersgd, not 'int8'"),
        (["--uneven", "-1"], r"--uneven must be a whole number from 0 to 1000000, not '-1'"),
        (["--save-every", "0"], r"--save-every must be a whole number from 1 to 1000000, not '0'"),
        (["--save-every", "9"], r"--save-every needs --save DIR"),
        (["--save-steps", "9", "--save-background"], r"--save-steps needs --save DIR"),
        (["--save-background"], r"--save-background needs --save DIR"),
        (["--resume", ""], r"--resume must be a directory, not ''"),
        (["--data"], r"--data needs a value"),
        (["--nosuch"], r"unknown flag.*--nosuch"),
        (["--no-shuffle=1"], r"--no-shuffle=1"),
        (["extra"], r"unexpected argument 'extra'"),
    ]:
        expect(f"wine {' '.join(flags)}", run([wine, *flags]), 2, err=[says])
    expect("wine --help", run([wine, "--help"]), out=["--weights-out FILE", "--drop-last"])


def check_files(wine, tmp):
    """Every file in turn missing, cut short, or not what it should be."""
    good = wine.parent / "data"

    def broken(name, change, says):
        folder = pathlib.Path(tempfile.mkdtemp(dir=tmp))
        for file in ("wine.csv", "split_train_idx.csv", "split_test_idx.csv", "init.f32"):
            shutil.copyfile(good / file, folder / file)
        change(folder / name)
        expect(f"wine with {name}: {says}", run([wine, "--data", folder, "--epochs", "1"]), 1,
               err=[re.escape(str(folder / name)) + ".*" + says])

    def cut(path):
        path.write_bytes(path.read_bytes()[:-100])

    for name in ("wine.csv", "split_train_idx.csv", "split_test_idx.csv", "init.f32"):
        broken(name, pathlib.Path.unlink, "No such file or directory")
    broken("wine.csv", cut, "line 178: not 13 numbers and a class|the file ends before its 178 rows")
    broken("wine.csv", lambda p: p.write_bytes(b""), "it is empty")
    broken("wine.csv", lambda p: p.write_text(p.read_text().replace("14.23", "x", 1)), "line 2: not 13 numbers")
    broken("wine.csv", lambda p: p.write_text(p.read_text() + p.read_text().splitlines()[1] + "\n"), "more than 178")
    broken("split_train_idx.csv", lambda p: p.write_text("1\n178\n"), "line 2: not a row number")
    broken("split_test_idx.csv", lambda p: p.write_text("1\n" * 179), "more than 178")
    broken("init.f32", cut, "shorter than 1091")
    broken("init.f32", lambda p: p.write_bytes(p.read_bytes() + b"\0"), "longer than 1091")
    broken("init.f32", lambda p: p.write_bytes(b"\xff" * 4364), "not a number")
    expect("wine --data of nothing", run([wine, "--data", "/nonexistent"]), 1,
           err=["/nonexistent/wine.csv: No such file or directory"])


def main():
    cddprun = os.path.abspath(sys.argv[1])
    examples = pathlib.Path(sys.argv[2]).resolve()
    wine = examples / "wine" / "wine"
    done = ranks(cddprun, 3, examples / "hello_ranks")
    expect("hello_ranks", done, out=[rf"rank {r} of 3, local rank {r} of 3, node 0, backend cpu" for r in range(3)])
    expect("hello_ranks alone", run([examples / "hello_ranks"]), out=["rank 0 of 1"])
    expect("allreduce", ranks(cddprun, 3, examples / "allreduce"),
           out=[rf"rank {r}: the sum over 3 ranks is right" for r in range(3)])
    plane = [rf"w\[{d}\] = {d + 1}\.00" for d in range(8)]
    expect("line_alone", run([examples / "line_alone"]), out=plane)
    expect("line_together alone", run([examples / "line_together"]), out=plane)
    expect("line_together", ranks(cddprun, 3, examples / "line_together"), out=plane)
    expect("wine alone", run([wine]), out=[r"epoch 10/100", r"epoch 100/100", r"test accuracy 1\.0000 \(36 of 36\)"])
    expect("wine --drop-last", ranks(cddprun, 3, wine, "--drop-last", "--epochs", "5"), out=["10 steps"])
    expect("wine whose ranks train differently",
           ranks(cddprun, 2, "sh", "-c", f'exec "{wine}" --epochs 2 --lr 0.00$((RANK + 1))'), 1,
           err=[r"the final weights of rank 1 are not those of rank 0"])
    check_readme()
    check_flags(wine)
    with tempfile.TemporaryDirectory() as tmp:
        check_files(wine, tmp)
        expect("wine with a file that cannot be written",
               run([wine, "--epochs", "1", "--metrics", os.path.join(tmp, "no", "file")]), 1, err=["cannot write .*no/file"])
        expect("wine with a full disk", run([wine, "--epochs", "1", "--weights-out", "/dev/full"]), 1,
               err=["cannot write /dev/full"])
        expect("wine that cannot save", ranks(cddprun, 2, wine, "--epochs", "50000", "--save", "/proc/self"), 1,
               err=["cannot save in /proc/self: "])
        for saved, resumed, how in ([], ["--zero"], "without"), (["--zero"], [], "with"):
            flags = ["--epochs", "2", "--save", os.path.join(tmp, how)]
            expect(f"wine {how} --zero", ranks(cddprun, 2, wine, *flags, *saved))
            expect(f"wine that goes on from a run {how} --zero", ranks(cddprun, 2, wine, *flags, "--resume", flags[-1], *resumed),
                   1, err=[rf"was saved {how} --zero: resume it in the same way"])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
