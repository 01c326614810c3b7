# SPDX-License-Identifier: Apache-2.0
"""Running one case of launcher_cases.py under torchrun or cddprun, and writing down what the workers saw.

A run is plain data, so that torchrun's can be kept in tests/data: what differs from run to run (ports, directories, random
names, pids) is replaced by words in angle brackets.
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from launch import free_port, take_signals
from launcher_cases import VARIABLES

PROBE = os.path.join(HERE, "launcher_probe.py")
MARK = "CDDP_TEST_MARK"


def kill_marked(mark):
    """Every process of the run, wherever it has gone."""
    wanted = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as f:
                if name.isdigit() and wanted in f.read().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
        except OSError:
            pass


class Run:
    def __init__(self, launcher, case, layout):
        self.case, self.layout = case, layout
        self.nodes, self.procs = (1, 4) if layout == "1x4" else (2, 2)
        self.tmp = tempfile.mkdtemp(prefix="cddp-launcher-")
        self.port = free_port()
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.launcher = launcher
        for name in ("probe", "tmp", "log"):
            os.mkdir(os.path.join(self.tmp, name))

    def path(self, *names):
        return os.path.join(self.tmp, *names)

    def fill(self, text, node=0):
        return (text.replace("{port}", str(self.port)).replace("{log}", self.path("log"))
                .replace("{probe}", PROBE).replace("{here}", HERE).replace("{node}", str(node)))

    def command(self, node):
        meet = self.case.meet(self.layout) if self.case.meet else (
            ["--nnodes=2", "--node_rank={node}", "--master_addr=127.0.0.1", "--master_port={port}"] if self.nodes == 2 else [])
        size = [] if self.case.sized else [f"--nproc_per_node={self.procs}"]
        words = [*self.launcher, *size, *meet, *self.case.args, *self.case.program]
        return [self.fill(word, node) for word in words]

    def env(self):
        keep = {k: os.environ[k] for k in ("PATH", "HOME", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS") if k in os.environ}
        return keep | {"LANG": "C.UTF-8", "TMPDIR": self.path("tmp"), "PROBE_DIR": self.path("probe"), MARK: self.mark,
                       **({} if "torchrun" in self.launcher[0] else {"PYTHON_EXEC": sys.executable}),
                       **{k: self.fill(v) for k, v in self.case.env.items()}}

    def plain(self, text):
        """Without what is another thing in each run."""
        text = text.replace(self.path("log"), "<log>").replace(self.tmp, "<tmp>").replace(HERE, "<tests>")
        text = re.sub(r"<tmp>/tmp/(cddprun-|torchelastic_)[^/\s]*", "<private>", text)
        text = re.sub(rf"\b{self.port}\b", "<port>", text)
        text = text.replace(os.path.realpath(sys.executable), "<python>").replace(sys.executable, "<python>")
        text = re.sub(rf"(?<!\w){re.escape(socket.gethostname())}(?!\w)", "<host>", text)
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b", "<random>", text)
        return re.sub(r"(<log>|<private>)/([^/\s]*_)?[A-Za-z0-9_]{6,8}/(attempt_|filtered)", r"\1/<run>/\3", text)

    def go(self):
        began = time.monotonic()
        deadline = began + self.case.limit
        processes = []
        try:
            for node in range(self.nodes):
                out, err = (open(self.path(f"{what}{node}"), "w", encoding="utf-8") for what in ("out", "err"))
                with out, err:
                    processes.append(subprocess.Popen(self.command(node), env=self.env(), stdin=subprocess.DEVNULL,
                                                      stdout=out, stderr=err, start_new_session=True, cwd=self.path("probe")))
            if self.case.signal:
                self.await_workers(processes[0], deadline)
                began = time.monotonic()
                processes[0].send_signal(self.case.signal)
            statuses = [self.await_end(p, deadline) for p in processes]
            took = time.monotonic() - began
            return self.collect(statuses, took)
        finally:
            kill_marked(self.mark)
            for p in processes:
                p.wait()
            shutil.rmtree(self.tmp, ignore_errors=True)

    def await_workers(self, process, deadline):
        while len([n for n in os.listdir(self.path("probe")) if n.endswith(".start")]) < 4:
            if time.monotonic() > deadline or process.poll() is not None:
                return
            time.sleep(0.01)
        time.sleep(0.3)  # torchrun handles signals only once all workers are started, and tells nobody when that is

    @staticmethod
    def await_end(process, deadline):
        try:
            return process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return "no end"

    def collect(self, statuses, took):
        run = {"status": statuses, "workers": {}, "files": {}, "signals": {}, "stdout": [], "stderr": [], "said": [],
               "slow": took > 10, "cores": len(os.sched_getaffinity(0)), "private": sorted(self.plain("<tmp>/tmp/" + n) for n in os.listdir(self.path("tmp")))}
        base = self.env()
        for name in sorted(os.listdir(self.path("probe"))):
            if name.endswith((".start", ".signal")):
                with open(self.path("probe", name), encoding="utf-8") as f:
                    value = json.load(f)
                key = name.rpartition(".")[0]
                if name.endswith(".signal"):
                    run["signals"][key] = value
                    continue
                value["env"] = {k: self.plain_value(k, v) for k, v in sorted(value["env"].items())
                                if base.get(k) != v and k not in ("CDDP_FLIGHT", "CDDP_STOP_SIGNALS", "PYTHONFAULTHANDLER", "_")}
                value["others"] = sorted(set(value["env"]) - set(VARIABLES))
                value["env"] = {k: v for k, v in value["env"].items() if k in VARIABLES}
                value["orig"] = [self.plain(word) for word in value["orig"]]
                run["workers"][key] = value
        for node in range(self.nodes):
            for what in ("out", "err"):
                with open(self.path(f"{what}{node}"), encoding="utf-8", errors="replace") as f:
                    lines = [self.plain(line.rstrip("\n")) for line in f]
                run["std" + what] += sorted(line for line in lines if "probe " in line and "File " not in line)
                if what == "err":
                    run["said"].append(self.last_word(lines))
        for folder, _, names in sorted(os.walk(self.path("log"))):
            for name in sorted(names):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8", errors="replace") as f:
                    found = run["files"].setdefault(self.plain(path), [])  # nodes have folders of the same plain name
                    found[:] = sorted(found + [self.plain(line.rstrip("\n")) for line in f])
        return run

    def plain_value(self, name, value):
        if name == "MASTER_PORT" and value != str(self.port):
            return "<any port>"
        return self.plain(value)

    @staticmethod
    def last_word(lines):
        """What the launcher said of a mistake: a Python error, or the one line of cddprun."""
        said = [line for line in lines if re.match(r"(torchrun: error: |cddprun: |[\w.]*(Error|Exception)\b)", line)]
        return said[-1] if said else ""


def run(launcher, case, layout):
    return Run(launcher, case, layout).go()
