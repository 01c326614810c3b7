# SPDX-License-Identifier: Apache-2.0
"""The questions to torchrun and cddprun: for each flag a few command lines, and what of the run is looked at.

WHY tells why cddprun differs, by case (and layout, if only one differs). The check fails on a difference without a reason,
and on a reason without a difference.
"""
import re
import signal

VARIABLES = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME",
             "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
             "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
             "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS",
             "CUDA_VISIBLE_DEVICES"]


# --- subjects --------------------------------------------------------------------------------------------------------

def squeeze(values):
    """One value if all are the same."""
    return values[0] if values and all(v == values[0] for v in values) else ", ".join(values)


def by_rank(run):
    return [run["workers"][key] for key in sorted(run["workers"], key=lambda k: (k.split(".")[1], int(k.split(".")[0])))]


def by_local_rank(worker, value):
    """A file for each local rank, as one."""
    local = worker["env"]["LOCAL_RANK"]
    return re.sub(rf"/{local}/error\.json|(?<=_){local}\.json", lambda m: m.group().replace(local, "<local rank>"), value)


def env(*names):
    def look(run):
        found = [f"{name}: " + squeeze([by_local_rank(w, w["env"].get(name, "not set")) for w in by_rank(run)]) for name in names]
        return ("; ".join(found) if len(names) > 1 else found[0].partition(": ")[2]) if run["workers"] else ended(run)
    return look


def others(run):
    """The variables that it adds and without a row."""
    return " ".join(sorted({name for w in by_rank(run) for name in w["others"]})) or "none"


def ended(run):
    """Exit statuses, and how many workers there were."""
    lives = sorted({key.split(".")[1] for key in run["workers"]})
    workers = len(run["workers"])
    text = "status " + squeeze([str(s) for s in run["status"]])
    text += f", {workers} workers" if workers else ", nothing ran"
    return text + (f", lives {' '.join(lives)}" if len(lives) > 1 else "")


def refused(run):
    """Was the command line refused before anything ran?"""
    if run["workers"] or "no end" in run["status"]:
        return ended(run)
    return "refused" if all(s != 0 for s in run["status"]) else "status 0, nothing ran"


def console(run):
    if not run["workers"]:
        return ended(run)
    lines = run["stdout"] + ["2> " + line for line in run["stderr"]]
    return "; ".join(lines) if lines else "nothing"


def files(run):
    """Files of the same name as one; `its lines` is what the workers of that local rank have written there."""
    if not run["files"]:
        return "no files" if run["workers"] else ended(run)
    groups = {}
    for path, text in sorted(run["files"].items()):
        folder, _, name = path.rpartition("/")
        top, _, local = folder.rpartition("/")
        each = len(run["workers"]) // len(run["status"])
        own = [f"probe {name[3:6]} {r}" for r in range(len(run["workers"])) if local.isdigit() and r % each == int(local)]
        what = "its lines" if text == own else ", ".join(text) or "empty"
        groups.setdefault((top, name, what) if local.isdigit() else (folder, name, what), []).append(local)
    return "; ".join(f"{top}/{'{' + ','.join(ranks) + '}/' if ranks[0].isdigit() else ''}{name} ({what})"
                     for (top, name, what), ranks in groups.items())


def signals(run):
    caught = sorted(set(run["signals"].values()))
    return f"{ended(run)}; workers got {', '.join(caught) or 'nothing'}" + ("; took more than 10 s" if run["slow"] else "")


def cores(run):
    return "one per core" if len(run["workers"]) == run["cores"] else ended(run)


def command(run):
    return squeeze([" ".join(w["orig"]) for w in by_rank(run)]) if run["workers"] else ended(run)


class Case:
    def __init__(self, name, *args, look=ended, mode="", env=None, layouts=("1x4", "2x2"), program=None, meet=None,
                 sized=False, signal=None, limit=60):
        self.name, self.args, self.look, self.env, self.layouts = name, list(args), look, env or {}, layouts
        self.program = program or ["{probe}", *([mode] if mode else [])]
        self.meet, self.sized, self.signal, self.limit = meet, sized, signal, limit
        settings = [f"{k}={v}" for k, v in self.env.items()]
        self.title = " ".join(settings + self.args) or "(no flag)"
        if mode:
            self.title += f" ({mode})"
        if signal:
            self.title += f" and {signal.name}"

    def key(self):
        return f"{self.name}: {self.title}"


def c10d(layout):
    return ["--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=job"] if layout == "2x2" else []


def only(*words):
    return lambda layout: list(words)


ONE = ("1x4",)
TWO = ("2x2",)

CASES = [
    Case("variable, any other", look=others),
    *[Case("variable " + name, look=env(name)) for name in VARIABLES],
    *[Case("variable " + name, "--rdzv_backend=c10d", look=env(name), meet=c10d, layouts=TWO)
      for name in ("GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE")],
    Case("variable OMP_NUM_THREADS", look=env("OMP_NUM_THREADS"), env={"OMP_NUM_THREADS": "3"}),
    Case("variable CUDA_VISIBLE_DEVICES", look=env("CUDA_VISIBLE_DEVICES"), env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"}),

    Case("nproc_per_node", "--nproc_per_node=4", sized=True, layouts=ONE),
    Case("nproc_per_node", "--nproc-per-node=cpu", sized=True, layouts=ONE, look=cores),
    Case("nproc_per_node", "--nproc_per_node=auto", sized=True, layouts=ONE, look=cores, env={"CUDA_VISIBLE_DEVICES": ""}),
    Case("nproc_per_node", "--nproc_per_node=gpu", sized=True, layouts=ONE, look=refused, env={"CUDA_VISIBLE_DEVICES": ""}),
    Case("nproc_per_node", "--nproc_per_node=xpu", sized=True, layouts=ONE, look=refused),
    Case("nproc_per_node", "--nproc_per_node=some", sized=True, layouts=ONE, look=refused),
    Case("nproc_per_node", "--nproc_per_node=0", sized=True, layouts=ONE, look=refused, limit=20),
    Case("nproc_per_node", "--nproc_per_node=-1", sized=True, layouts=ONE, look=refused, limit=20),
    Case("nproc_per_node", env={"PET_NPROC_PER_NODE": "3"}, sized=True, layouts=ONE, look=env("LOCAL_WORLD_SIZE")),
    Case("nnodes", "--nnodes=1", layouts=ONE),
    Case("nnodes", "--nnodes=1:1", layouts=ONE),
    Case("nnodes", "--nnodes=2:2", meet=c10d, layouts=TWO),
    Case("nnodes", "--nnodes=2:1", layouts=ONE, look=refused),
    Case("nnodes", "--nnodes=0", layouts=ONE, look=refused),
    Case("nnodes", "--nnodes=1:2:3", layouts=ONE, look=refused),
    Case("nnodes", "--nnodes=two", layouts=ONE, look=refused),
    Case("nnodes", env={"PET_NNODES": "1"}, layouts=ONE),
    Case("node_rank", look=env("GROUP_RANK"), layouts=TWO),
    Case("node_rank", look=env("GROUP_RANK"), env={"PET_NODE_RANK": "0"}, layouts=ONE),
    Case("node_rank", "--node_rank=-1", look=refused, layouts=ONE, limit=20),
    Case("node_rank", "--node_rank=2", look=refused, layouts=ONE, limit=20),
    Case("master_addr", "--master_addr=127.0.0.1", look=env("MASTER_ADDR")),
    Case("master_addr", look=env("MASTER_ADDR"), layouts=ONE, env={"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "{port}"}),
    Case("master_port", "--master_port={port}", look=env("MASTER_PORT")),
    Case("master_port", "--master_port=x", look=refused, layouts=ONE),
    Case("master_port", "--master_port=65536", look=refused, layouts=ONE, limit=20),
    Case("rdzv_backend", "--rdzv_backend=static", layouts=TWO),
    Case("rdzv_backend", "--rdzv_backend=c10d", meet=c10d),
    Case("rdzv_backend", "--rdzv_backend=etcd", look=refused, layouts=ONE),
    Case("rdzv_backend", "--rdzv_backend=none", look=refused, layouts=ONE),
    Case("rdzv_backend", env={"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "127.0.0.1:{port}"}, layouts=ONE),
    Case("rdzv_endpoint", "--rdzv_endpoint=127.0.0.1:{port}", meet=only("--nnodes=2", "--rdzv_backend=c10d"), layouts=TWO,
         look=env("MASTER_ADDR", "MASTER_PORT")),
    Case("rdzv_endpoint", "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:port", look=refused, layouts=ONE),
    Case("rdzv_endpoint", "--rdzv_endpoint=", layouts=ONE),
    Case("rdzv_id", "--rdzv_id=job7", look=env("TORCHELASTIC_RUN_ID")),
    Case("rdzv_id", env={"PET_RDZV_ID": "job8"}, look=env("TORCHELASTIC_RUN_ID"), layouts=ONE),
    Case("rdzv_conf", "--rdzv_conf=join_timeout=30", meet=c10d),
    Case("rdzv_conf", "--rdzv_conf=timeout=30"),
    Case("rdzv_conf", "--rdzv_conf=read_timeout=60", layouts=ONE),
    Case("rdzv_conf", "--rdzv_conf=last_call_timeout=5", layouts=ONE),
    Case("rdzv_conf", "--rdzv_conf=nonsense=1", look=refused, layouts=ONE),
    Case("rdzv_conf", "--rdzv_conf=nonsense", look=refused, layouts=ONE),
    Case("rdzv_conf", env={"PET_RDZV_CONF": "timeout=30"}, layouts=ONE),
    Case("standalone", "--standalone", look=env("MASTER_PORT", "TORCHELASTIC_RUN_ID"), layouts=ONE),
    Case("standalone", look=env("MASTER_PORT", "TORCHELASTIC_RUN_ID"), layouts=ONE, env={"PET_STANDALONE": "1"}),
    Case("standalone", look=refused, layouts=ONE, env={"PET_STANDALONE": "true"}),
    Case("local_addr", "--local_addr=127.0.0.1", look=env("MASTER_ADDR"), meet=c10d, layouts=TWO),
    Case("local_addr", look=env("MASTER_ADDR"), env={"PET_LOCAL_ADDR": "127.0.0.1"}, layouts=ONE),

    Case("max_restarts", "--max_restarts=1", mode="restart", look=ended),
    Case("max_restarts", mode="fail", look=ended),
    Case("max_restarts", "--max_restarts=-1", look=refused, layouts=ONE),
    Case("max_restarts", "--max_restarts=x", look=refused, layouts=ONE),
    Case("max_restarts", mode="restart", look=ended, env={"PET_MAX_RESTARTS": "1"}, layouts=ONE),
    Case("monitor_interval", "--monitor_interval=0.5", layouts=ONE),
    Case("monitor_interval", "--monitor_interval=often", look=refused, layouts=ONE),
    Case("monitor_interval", env={"PET_MONITOR_INTERVAL": "0.5"}, layouts=ONE),
    Case("shutdown_timeout", "--shutdown_timeout=2", mode="stubborn", signal=signal.SIGTERM, look=signals, layouts=ONE),
    Case("shutdown_timeout", "--shutdown_timeout=x", look=refused, layouts=ONE),
    Case("shutdown_timeout", mode="stubborn", signal=signal.SIGTERM, look=signals, layouts=ONE,
         env={"PET_SHUTDOWN_TIMEOUT": "2"}),
    Case("shutdown_timeout", mode="stubborn", signal=signal.SIGTERM, look=signals, layouts=ONE,
         env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "2"}),
    Case("signals_to_handle", mode="wait", signal=signal.SIGTERM, look=signals),
    Case("signals_to_handle", mode="wait", signal=signal.SIGINT, look=signals, layouts=ONE),
    Case("signals_to_handle", mode="wait", signal=signal.SIGHUP, look=signals, layouts=ONE),
    Case("signals_to_handle", mode="wait", signal=signal.SIGUSR1, look=signals, layouts=ONE, limit=15),
    Case("signals_to_handle", "--signals_to_handle=SIGTERM,SIGUSR1", mode="wait", signal=signal.SIGUSR1, look=signals, layouts=ONE),
    Case("signals_to_handle", "--signals_to_handle=SIGTERM", look=env("TORCHELASTIC_SIGNALS_TO_HANDLE")),
    Case("signals_to_handle", "--signals_to_handle=SIGNONE", look=refused, layouts=ONE),
    Case("signals_to_handle", env={"PET_SIGNALS_TO_HANDLE": "SIGTERM"}, look=env("TORCHELASTIC_SIGNALS_TO_HANDLE"), layouts=ONE),

    Case("log_dir", "--log_dir={log}", look=files),
    Case("log_dir", "--log_dir={log}", look=env("TORCHELASTIC_ERROR_FILE")),
    Case("log_dir", "--log_dir=/dev/null", look=env("TORCHELASTIC_ERROR_FILE"), layouts=ONE),
    Case("log_dir", "--redirects=3", look=files, env={"PET_LOG_DIR": "{log}"}, layouts=ONE),
    Case("redirects", "--redirects=3", "--log_dir={log}", look=files),
    Case("redirects", "--redirects=3", "--log_dir={log}", look=console),
    Case("redirects", "-r", "0:1,1:2", "--log_dir={log}", look=files),
    Case("redirects", "-r", "0:1,1:2", "--log_dir={log}", look=console),
    Case("redirects", "--redirects=10:3", "--log_dir={log}", layouts=ONE),
    Case("redirects", "--redirects=4", look=refused, layouts=ONE),
    Case("redirects", "--log_dir={log}", look=files, env={"PET_REDIRECTS": "1"}, layouts=ONE),
    Case("tee", "--tee=3", "--log_dir={log}", look=files),
    Case("tee", "--tee=3", "--log_dir={log}", look=console),
    Case("tee", "-t", "1:3", "--log_dir={log}", look=console, layouts=ONE),
    Case("tee", "--tee=x", look=refused, layouts=ONE),
    Case("tee", "--log_dir={log}", look=files, env={"PET_TEE": "2"}, layouts=ONE),
    Case("tee", "--tee=3", "--log_dir={log}", look=console, layouts=ONE,
         env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}|${rank}|${local_rank}|${other}> "}),
    Case("tee", "--tee=1", "--redirects=2", "--log_dir={log}", look=files, layouts=ONE),
    Case("local_ranks_filter", "--local_ranks_filter=1", look=console),
    Case("local_ranks_filter", "--local_ranks_filter=0,3", "--tee=3", "--log_dir={log}", look=console, layouts=ONE),
    Case("local_ranks_filter", "--local_ranks_filter=x", look=refused, layouts=ONE),
    Case("local_ranks_filter", look=console, env={"PET_LOCAL_RANKS_FILTER": "2"}, layouts=ONE),
    Case("duplicate_stdout_filters", "--duplicate_stdout_filters=out 2,out 3", "--tee=3", "--log_dir={log}", look=files, layouts=ONE),
    Case("duplicate_stderr_filters", "--duplicate_stderr_filters=err 1", "--tee=3", "--log_dir={log}", look=files, layouts=ONE),
    Case("event_log_handler", "--event_log_handler=null", layouts=ONE),
    Case("event_log_handler", "--event_log_handler=console", look=refused, layouts=ONE),
    Case("event_log_handler", "--event_log_handler=mine", look=refused, layouts=ONE),
    Case("logs_specs", "--logs_specs=mine", look=refused, layouts=ONE),

    Case("role", "--role=trainer", look=env("ROLE_NAME")),
    Case("role", env={"PET_ROLE": "trainer"}, look=env("ROLE_NAME"), layouts=ONE),
    Case("module", "-m", look=command, program=["launcher_probe", "x"], env={"PYTHONPATH": "{here}"}),
    Case("module", look=command, program=["launcher_probe", "x"], env={"PYTHONPATH": "{here}", "PET_MODULE": "1"}, layouts=ONE),
    Case("module", "-m", "--no_python", look=refused, layouts=ONE),
    Case("no_python", "--no_python", look=command),
    Case("no_python", env={"PET_NO_PYTHON": "1"}, look=command, layouts=ONE),
    Case("no_python", look=command, layouts=ONE),
    Case("run_path", "--run_path", look=ended, layouts=ONE),
    Case("start_method", "--start_method=spawn", layouts=ONE),
    Case("start_method", "--start_method=fork", look=refused, layouts=ONE),
    Case("start_method", "--start_method=thread", look=refused, layouts=ONE),
    Case("virtual_local_rank", "--virtual_local_rank", look=env("LOCAL_RANK", "CUDA_VISIBLE_DEVICES")),
    Case("virtual_local_rank", "--virtual_local_rank", look=env("LOCAL_RANK", "CUDA_VISIBLE_DEVICES"),
         env={"CUDA_VISIBLE_DEVICES": "7,5,3,1"}, layouts=ONE),
    Case("virtual_local_rank", "--virtual_local_rank", look=refused, env={"CUDA_VISIBLE_DEVICES": "7,5"}, layouts=ONE),
    Case("virtual_local_rank", look=env("LOCAL_RANK"), env={"PET_VIRTUAL_LOCAL_RANK": "1"}, layouts=ONE),
    Case("numa_binding", "--numa_binding=node", look=ended, layouts=ONE),
    Case("numa_binding", "--numa_binding=core", look=refused, layouts=ONE),
    Case("arguments", look=command, program=["{probe}", "r${local_rank}", "--nnodes=9", "--", "-x"]),
    Case("unknown flag", "--nproc=4", sized=True, layouts=ONE),
    Case("unknown flag", "--max=1", look=refused, layouts=ONE),
    Case("unknown flag", "--master=1", look=refused, layouts=ONE),
    Case("unknown flag", "--nothing=1", look=refused, layouts=ONE),
    Case("no program", look=refused, program=[""], layouts=ONE),
    Case("program not found", "--no_python", look=refused, program=["./nothing"], layouts=ONE),
]

REFUSED = "cddprun rejects a flag that would have no effect, so that nobody believes it had one."
STATUS = "The exit status is the first failing rank's, or 128 + the signal, where torchrun always gives 1."
PUSHED = "All nodes learn of a failure at once; torchrun's other node does not, and waits for its own workers."
PREFIX = "Lines of workers have the rank in front; TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE makes another prefix."
ADDRESS = "The address itself, so that no worker has to resolve a name."

# (key of a case, layout or subject), a key, (name of a case, layout or subject), or a name
WHY = {
    ("variable MASTER_ADDR", "1x4"): ADDRESS,
    ("variable MASTER_ADDR: --rdzv_backend=c10d", "2x2"): ADDRESS,
    "variable MASTER_PORT: --rdzv_backend=c10d": "One port serves the rendezvous and the workers' store.",
    "variable TORCHELASTIC_ERROR_FILE": "Without a log directory the files are in a private one, which is removed at the end.",
    "node_rank": "A node rank that cannot be is an error; torchrun does not look at it with one node.",
    ("master_addr", "1x4"): ADDRESS,
    "rdzv_endpoint: --rdzv_endpoint=127.0.0.1:{port}": "One port serves the rendezvous and the workers' store, and nobody has to "
                                                       "resolve a name.",
    ("rdzv_id", "1x4"): "torchrun drops the id: with one node and no endpoint it changes to its own rendezvous.",
    "rdzv_conf: --rdzv_conf=read_timeout=60": REFUSED,
    "rdzv_conf: --rdzv_conf=nonsense=1": REFUSED,
    ("max_restarts: --max_restarts=1 (restart)", "2x2"): PUSHED,
    ("max_restarts: (no flag) (fail)", "1x4"): STATUS,
    ("max_restarts: (no flag) (fail)", "2x2"): PUSHED + " " + STATUS,
    "signals_to_handle: (no flag) (wait) and SIGUSR1": "USR1 is for the workers; torchrun dies of it and leaves them running.",
    ("signals_to_handle: (no flag) (wait) and SIGTERM", "2x2"): PUSHED,
    "signals_to_handle: --signals_to_handle=SIGNONE": REFUSED,
    "signals_to_handle": STATUS,
    "shutdown_timeout": STATUS,
    "log_dir: --log_dir=/dev/null": "Error files are always there: the report reads them.",
    ("redirects: -r 0:1,1:2 --log_dir={log}", "console"): PREFIX,
    ("tee", "console"): PREFIX,
    ("local_ranks_filter", "console"): PREFIX,
    "duplicate_stdout_filters": PREFIX,
    "duplicate_stderr_filters": PREFIX,
    "redirects: --redirects=10:3 --log_dir={log}": "Any local rank may be named; torchrun stops at 9.",
    "event_log_handler: --event_log_handler=console": "--status_fd=2 is that log, with times.",
    "start_method: --start_method=fork": REFUSED,
    "numa_binding: --numa_binding=node": "Cores are bound without CUDA too; torchrun asks CUDA for the GPU, and there is none here.",
    "unknown flag: --nproc=4": "A flag may be shortened; to torchrun its own two spellings of it are two flags.",
    "unknown flag: --max=1": "A flag may be shortened; to torchrun its own two spellings of it are two flags.",
}
