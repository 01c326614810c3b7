#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every mistake a user can make on one node: one clear error message, a non-zero exit status, in time, and no process left.

    bad_input.py CDDPRUN PROBE [NAME]     NAME: only the cases whose name contains it
"""
import os
import pathlib
import re
import resource
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import launch

SANITIZED = bool(os.environ.get("CDDP_TEST_SANITIZED"))


def processes_with(marker):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        process = pathlib.Path("/proc", pid)
        try:
            if marker in (process / "environ").read_bytes() and int(pid) != os.getpid():
                found.append(f"{pid} {(process / 'cmdline').read_bytes()!r}")
        except OSError:
            pass
    return found


class Case:
    def __init__(self, name, command, says, env=None, limits=None, status=None, may_work=False, seconds=10):
        self.__dict__.update(locals())

    def run(self):
        marker = f"CDDP_TEST_MARKER={uuid.uuid4()}"
        tmp = tempfile.TemporaryDirectory()
        env = {**os.environ, "TMPDIR": tmp.name, "CDDP_JOIN_TIMEOUT": "10", **(self.env or {})}
        env = {k: v for k, v in env.items() if v is not None}
        env.update([marker.split("=")])

        def limit():
            for what, value in (self.limits or {}).items():
                resource.setrlimit(what, (value, value))

        start = time.monotonic()
        try:
            done = subprocess.run(self.command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                  timeout=launch.within(30), preexec_fn=limit)
        except subprocess.TimeoutExpired as late:
            return [f"still running; stderr: {late.stderr}"]
        took = time.monotonic() - start
        bad = []
        if done.returncode == 0 and not self.may_work:
            bad.append("exit status 0")
        if self.status is not None and done.returncode != self.status:
            bad.append(f"exit status {done.returncode}, not {self.status}")
        if done.returncode != 0 and not re.search(self.says, done.stderr):
            bad.append(f"nothing on stderr matches {self.says!r}")
        if done.returncode < 0:
            bad.append(f"died of signal {-done.returncode}")
        if took > launch.within(self.seconds):
            bad.append(f"took {took:.1f} s")
        if re.search(r"Assertion|Sanitizer|runtime error|core dumped\)", done.stderr):
            bad.append("an assertion or a sanitizer spoke")
        left = processes_with(marker.encode())
        if left:
            bad.append(f"left running: {left}")
        if os.listdir(tmp.name):
            bad.append(f"left in TMPDIR: {os.listdir(tmp.name)}")
        tmp.cleanup()
        return [*bad, "--- stderr", done.stderr, "--- stdout", done.stdout] if bad else []


def cases(cddprun, probe, tmp):
    two = [cddprun, "--standalone", "--nproc_per_node=2"]
    not_executable = tmp / "data.txt"
    not_executable.write_text("no program\n")
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]

    def shell(text):
        return [*two, "sh", "-c", text.replace("PROBE", shlex.quote(str(probe)))]

    yield taken
    yield Case("RANK missing", shell("unset RANK; exec PROBE init"), r"RANK\b.* not set")
    yield Case("RANK not a number", shell("RANK=two exec PROBE init"), r"RANK='two' is not a whole number")
    yield Case("RANK out of range", shell("RANK=7 exec PROBE init"), r"RANK\D+7\b.*WORLD_SIZE\D+2\b")
    yield Case("WORLD_SIZE empty", shell("WORLD_SIZE= exec PROBE init"), r"WORLD_SIZE\b.* not set")
    yield Case("MASTER_PORT nonsense", shell("MASTER_PORT=99999 exec PROBE init"), r"MASTER_PORT='99999'")
    yield Case("two processes with one rank", [*two, str(probe), "dup"], r"E_EXISTS: two processes have RANK=0: process \d+ on .* process \d+ on")
    yield Case("a world that never completes", [*two, str(probe), "absent"], r"E_TIMEOUT.*1 of 2.*: 1\b",
               env={"CDDP_JOIN_TIMEOUT": "1"})
    for rank in 0, 1:
        yield Case(f"shapes differ, rank {rank} says it", [*two, str(probe), "shapes"],
                   rf"\[{rank}\] .*E_MISMATCH.*'fc\.weight'.*rank 0.*rank 1")
    yield Case("the report has libcddp's own words", [*two, str(probe), "shapes"],
               r"cddprun: rank \d .*\n(    .*\n)+    its message:\n    \| CDDP_E_MISMATCH: .*'fc\.weight'")
    yield Case("collectives in different order", [*two, str(probe), "order"], r"E_MISMATCH.*(all_reduce.*broadcast|broadcast.*all_reduce)")
    yield Case("a rank makes a reducer alone", [*two, str(probe), "create"],
               r"rank 0 called cddp_ddp_create \(all_gather of \d+ uint8\), rank 1 called barrier")
    yield Case("a rank saves alone", [*two, str(probe), "save"],
               r"rank 0 called cddp_checkpoint_save \(all_gather of \d+ uint8\), rank 1 called barrier")
    yield Case("a rank does not come to a step", [*two, "--shutdown_timeout=1", str(probe), "lag"],
               r"E_TIMEOUT: all_reduce\(mean\) of \d+ float32 \(bucket 0: 'fc\.weight' and 1 more\): rank 1 did not arrive",
               env={"CDDP_TIMEOUT": "3"})
    yield Case("a rank is stopped", [*two, str(probe), "freeze"],
               r"E_TIMEOUT: all_reduce.*: rank 1 did not arrive within 3 s \(pid \d+, which is stopped by a signal\)",
               env={"CDDP_TIMEOUT": "3"})
    yield Case("a rank dies in a collective", [*two, str(probe), "die"], r"rank 1\b.*SIGKILL", status=137)
    yield Case("port in use", [cddprun, "--master_port", str(port), "--nproc_per_node=2", str(probe)],
               rf"{port}.*in use")
    yield Case("unresolvable master address",
               [cddprun, "--master_addr=no-such-host.invalid", f"--master_port={launch.free_port()}", str(probe)],
               r"no-such-host\.invalid", seconds=20)
    yield Case("program does not exist", [*two, "/no/such/program"], r"/no/such/program.*[Nn]o such file", status=127)
    yield Case("program not in PATH", [*two, "no-such-program-here"], r"no-such-program-here", status=127)
    yield Case("program not executable", [*two, str(not_executable)], r"data\.txt.* is not executable", status=126)
    yield Case("no program", [cddprun, "--standalone"], r"program", status=2)
    yield Case("unknown flag", [cddprun, "--nprocs_per_node=2", str(probe)], r"nprocs_per_node.*nproc_per_node", status=2)
    yield Case("nproc_per_node zero", [cddprun, "--nproc_per_node=0", str(probe)], r"nproc_per_node.*0", status=2)
    yield Case("nproc_per_node negative", [cddprun, "--nproc_per_node=-2", str(probe)], r"nproc_per_node.*-2", status=2)
    yield Case("nproc_per_node nonsense", [cddprun, "--nproc_per_node=many", str(probe)], r"nproc_per_node.*many", status=2)
    if not pathlib.Path("/dev/nvidia0").exists():
        yield Case("gpu without a GPU", [cddprun, "--nproc_per_node=gpu", str(probe)], r"GPU")
    yield Case("RLIMIT_NOFILE=16", [*two, str(probe)], r"(descriptor|open files|NOFILE)",
               limits={resource.RLIMIT_NOFILE: 16}, may_work=True)
    if not SANITIZED:
        yield Case("RLIMIT_AS=64 MiB", [*two, str(probe)], r"(memory|RLIMIT_AS)",
                   limits={resource.RLIMIT_AS: 64 << 20}, may_work=True)
    yield from cases_without_cddprun(str(probe), port, tmp)


def cases_without_cddprun(probe, taken, tmp):
    """Ranks that were started by hand or by mpirun: libcddp's own messages."""
    def by_hand(**more):
        return {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launch.free_port()),
                "CDDP_JOIN_TIMEOUT": "1"} | more

    yield Case("by hand, the others do not start", [probe], r"E_TIMEOUT: 1 of 2 ranks did not join within 1 s: 1", env=by_hand())
    yield Case("by hand, rank 0 does not start", [probe], r"E_IO: .*rank 0 hosts the store", env=by_hand(RANK="1"))
    yield Case("by hand, the port is taken", [probe], rf"E_EXISTS: .*port {taken} of '127\.0\.0\.1' is in use.*MASTER_PORT",
               env=by_hand(MASTER_PORT=str(taken)))
    yield Case("by hand, an address that does not resolve", [probe], r"'no-such-host\.invalid' \(MASTER_ADDR\)",
               env=by_hand(MASTER_ADDR="no-such-host.invalid"), seconds=20)
    yield Case("mpirun without an endpoint", [probe], r"MASTER_ADDR is not set.*-x MASTER_ADDR=.* -x MASTER_PORT=",
               env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
    yield Case("srun without an endpoint", [probe], r"MASTER_ADDR is not set.*MASTER_PORT=29500",
               env={"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"})
    token = tmp / "token"
    token.write_text("hunter2\n")
    token.chmod(0o644)
    yield Case("a secret that others can read", [probe], r"E_DENIED: .*token.*chmod 600", env=by_hand(CDDP_AUTH_TOKEN_FILE=str(token)))


def main():
    cddprun, probe = (str(pathlib.Path(a).resolve()) for a in sys.argv[1:3])
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    failed = passed = 0
    with tempfile.TemporaryDirectory() as tmp:
        todo = cases(cddprun, probe, pathlib.Path(tmp))
        keep_port_taken = next(todo)
        for case in todo:
            if only not in case.name:
                continue
            bad = case.run()
            failed += bool(bad)
            passed += not bad
            print("not ok" if bad else "ok", failed + passed, "-", case.name)
            for line in bad:
                print("#", str(line).replace("\n", "\n# "))
        keep_port_taken.close()
    print(f"1..{failed + passed}")
    return 1 if failed or not passed else 0


sys.exit(main())
