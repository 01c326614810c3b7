/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/cli/flags.h"
#include "common/time_limits.h"

#include "launcher/cli/options.h"

#include <stdio.h>
#include <string.h>

#define AT(member) .offset = offsetof(struct options, member)
#define RANGE(low, high) .min = (low), .max = (high)

const char *const flag_groups[N_GROUPS] = {
    [GROUP_JOB] = "Workers and job",
    [GROUP_NODES] = "Several nodes",
    [GROUP_FAILURE] = "Failures and the end",
    [GROUP_LOGS] = "Output and logs",
    [GROUP_PLACE] = "Placement",
    [GROUP_PYTHON] = "Python programs",
    [GROUP_OTHER] = "The command line",
    [GROUP_TORCHRUN] = "For command lines of torchrun",
};

/* clang-format off */
const struct flag flags[] = {
    /* ------------------------------------------------------------------------------------------- workers and job */
    {.name = "nproc_per_node", .shorts = "ppn", .group = GROUP_JOB, .kind = FLAG_NPROC, AT(nproc),
     RANGE(1, OPTIONS_MAX_PROCS), .fallback = "1", .value = "N|cpu|gpu|auto",
     .help = "workers on this node: a number; cpu: one for each usable core; gpu: one for each GPU; auto: gpu if the "
             "node has any, otherwise cpu"},
    {.name = "world_size", .shorts = "n np", .env = "", .group = GROUP_JOB, .kind = FLAG_NUMBER, AT(world_size),
     RANGE(1, (int64_t)OPTIONS_MAX_PROCS * OPTIONS_MAX_NODES), .value = "N", .ours = true,
     .help = "workers on all nodes together; with -ppn it also gives the number of nodes"},
    {.name = "standalone", .group = GROUP_JOB, .kind = FLAG_SWITCH, AT(standalone), .fallback = "0",
     .help = "one node and any free port, so that several jobs on a node do not collide"},
    {.name = "rdzv_id", .group = GROUP_JOB, .kind = FLAG_TEXT, AT(run_id), RANGE(1, 255), .value = "NAME",
     .shown_default = "random; several nodes: none",
     .help = "the job's name, TORCHELASTIC_RUN_ID of the workers"},
    {.name = "role", .group = GROUP_TORCHRUN, .kind = FLAG_TEXT, AT(role), RANGE(1, 255), .fallback = "default",
     .value = "NAME", .help = "ROLE_NAME of the workers"},
    {.name = "export", .shorts = "x", .env = "", .group = GROUP_JOB, .kind = FLAG_EXPORT,
     .value = "NAME[=VALUE]|ALL", .ours = true,
     .help = "export a variable to the workers: NAME=VALUE, or NAME to pass on its current value, which must be "
             "set (repeatable); ALL: to the hosts of --hosts and --hostfile all variables but those of the login and "
             "the batch system"},
    /* ----------------------------------------------------------------------------------------- several nodes */
    {.name = "nnodes", .group = GROUP_NODES, .kind = FLAG_NNODES, AT(min_nodes), RANGE(1, OPTIONS_MAX_NODES),
     .fallback = "1", .value = "N|MIN:MAX|MIN:",
     .help = "number of nodes; start one cddprun on each, with the same flags except --node_rank and "
             "--nproc_per_node; with MIN:MAX the job continues when nodes leave, join or are lost; MIN: takes MAX "
             "from the Slurm step"},
    {.name = "node_rank", .group = GROUP_NODES, .kind = FLAG_NUMBER, AT(node_rank), RANGE(0, OPTIONS_MAX_NODES - 1),
     .shown_default = "assigned by the rendezvous", .value = "N", .help = "rank of this node, from 0"},
    {.name = "master_addr", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(master_addr), RANGE(1, 255),
     .shown_default = "127.0.0.1; several nodes: MASTER_ADDR", .value = "ADDRESS",
     .help = "address of node 0, where the job's store listens"},
    {.name = "master_port", .group = GROUP_NODES, .kind = FLAG_NUMBER, AT(master_port), RANGE(0, 65535),
     .shown_default = "any free one; several nodes: MASTER_PORT, 29500; --hosts: a random one", .value = "PORT",
     .help = "port of the store"},
    {.name = "rdzv_endpoint", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(rdzv_endpoint), RANGE(0, 1023),
     .shown_default = "port 29400", .value = "HOST[:PORT]",
     .help = "address and port in one value; without node ranks, the node that owns this address hosts the rendezvous; "
             "with etcd: its members, HOST[:PORT],..., by default at port 2379"},
    {.name = "rdzv_backend", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(rdzv_backend), RANGE(1, 255),
     .value = "static|c10d|etcd|etcd-v2",
     .help = "static and c10d are accepted for compatibility: both select cddprun's own rendezvous; with etcd or "
             "etcd-v2 the nodes elect its host by etcd 3.4 or later, and another one follows if it is lost"},
    {.name = "rdzv_conf", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(rdzv_conf), RANGE(0, 1023), .value = "K=V,...",
     .shown_default = "join_timeout=" CDI_LIMIT_TEXT(CDI_LIMIT_JOIN_S) ",last_call_timeout=" CDI_LIMIT_TEXT(
         CDI_LIMIT_LAST_CALL_S) ",lease=" CDI_LIMIT_TEXT(CDI_LIMIT_LEASE_S),
     .help = "join_timeout=S (or timeout=S): how long to wait for enough nodes; last_call_timeout=S: how long to "
             "wait for more than MIN nodes (by default only before the first round); lease=S, or "
             "keep_alive_interval=S and keep_alive_max_attempt=N: how long a silent node counts as present; "
             "close_timeout=S: when connections of a finished job are closed; the values of the first node apply; "
             "is_host=0|1: whether this node hosts; rank=N; limits of the host, as for cddp-rendezvous: "
             "store_memory=SIZE, buffer_memory=SIZE, max_key=SIZE, max_value=SIZE, max_waits=N, max_connections=N; for "
             "etcd: protocol=http|https, cacert=FILE, cert=FILE, key=FILE, user=NAME and password_file=FILE, prefix=KEY"},
    {.name = "local_addr", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(local_addr), RANGE(1, 255),
     .shown_default = "its host name", .value = "ADDRESS", .help = "name or address of this node in messages"},
    {.name = "auth_token_file", .env = "CDDP_AUTH_TOKEN_FILE", .group = GROUP_NODES, .kind = FLAG_TEXT,
     AT(auth_token_file), RANGE(1, 255), .value = "FILE", .ours = true,
     .help = "file with the job's auth token, which agents and libcddp must prove; --standalone creates one"},
    {.name = "hosts",
     .group = GROUP_NODES,
     .kind = FLAG_TEXT,
     AT(hosts),
     RANGE(1, 65535),
     .value = "HOST[:N],...",
     .ours = true,
     .help = "start cddprun on each of these hosts by ssh, with N workers (default: --nproc_per_node); the first "
             "is node 0"},
    {.name = "hostfile", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(hostfile), RANGE(1, 4095), .value = "FILE",
     .ours = true,
     .help = "the same with the hosts of a file in Open MPI's or MPICH's format: a line HOST slots=N or HOST:N for "
             "each, with N workers; --nproc_per_node, if given, is the number on each host, and at most N"},
    {.name = "ssh_args", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(ssh_args), RANGE(1, 4095), .value = "ARGUMENTS",
     .ours = true,
     .help = "arguments for ssh, separated by spaces, such as --ssh_args=\"-p 2222 -i key\""},
    {.name = "rank_order",
     .group = GROUP_NODES,
     .kind = FLAG_TEXT,
     AT(rank_order),
     RANGE(1, 4095),
     .shown_default = "natural order of host names, node7 before node66",
     .value = "FILE",
     .ours = true,
     .help = "file with the host names in the order of their node ranks, one a line; the first one hosts the "
             "rendezvous unless another flag selects a host"},
    {.name = "spares", .group = GROUP_NODES, .kind = FLAG_NUMBER, AT(spares), RANGE(0, OPTIONS_MAX_NODES - 1),
     .fallback = "0", .value = "N", .ours = true,
     .help = "number of standby nodes that replace a lost one"},
    {.name = "topology", .env = "CDDP_TOPOLOGY", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(topology), RANGE(1, 255),
     .value = "TEXT", .ours = true,
     .help = "network location of this node, such as row3.rack7; nodes with similar locations get adjacent ranks"},
    {.name = "data_ports", .env = "CDDP_DATA_PORTS", .group = GROUP_NODES, .kind = FLAG_PORTS, AT(data_ports),
     .value = "A-B", .shown_default = "any free ones", .ours = true,
     .help = "ports on which workers without GPUs listen for those of other nodes, for a firewall: one for each worker "
             "of a node and each of its communicators"},
    {.name = "preflight", .group = GROUP_NODES, .kind = FLAG_CHOICE, AT(preflight), .fallback = "off",
     .value = "stop|only|exclude|off", .alone = "stop", .ours = true,
     .help = "before the workers start, check every node in seconds: its data ports and links, clock, memory, disks, "
             "limits and GPUs; print a table, and name the nodes that differ. stop: start nothing if a node cannot "
             "take part; only: check, and end; exclude: such a node leaves the job, and a spare one takes its place"},
    /* ------------------------------------------------------------------------------------------------- failures */
    {.name = "max_restarts", .group = GROUP_FAILURE, .kind = FLAG_NUMBER, AT(max_restarts), RANGE(0, 1000000),
     .fallback = "0", .value = "N",
     .help = "restart all workers after a failure, N times at most; after more than three failures in a row within 5 s "
             "of their start it pauses: 1 s, 2 s, 4 s and so on up to 30 s"},
    {.name = "no_restart_codes", .group = GROUP_FAILURE, .kind = FLAG_RANKS, AT(no_restart_codes), .value = "STATUS,...",
     .ours = true,
     .help = "end the job without a restart if the worker that failed first has one of these exit statuses, such as 2 "
             "for a wrong argument, or 128 + the number of the signal that killed it"},
    {.name = "on_failure", .group = GROUP_FAILURE, .kind = FLAG_CHOICE, AT(on_failure), .fallback = "stop",
     .value = "stop|wait", .ours = true,
     .help = "after a failure of a worker: stop ends the others; wait leaves them running, and "
             "libcddp reports to them which rank died"},
    {.name = "crash_stack", .env = "CDDP_CRASH_STACK", .group = GROUP_FAILURE, .kind = FLAG_CHOICE, AT(crash_stack),
     .fallback = "on", .value = "on|off", .ours = true,
     .help = "the report about a worker that uses libcddp and dies of SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT shows "
             "its native stack, unless the program handles the signal itself"},
    {.name = "hang_warning", .group = GROUP_FAILURE, .kind = FLAG_SECONDS, AT(hang_warning_ms), RANGE(0, 86400000),
     .fallback = CDI_LIMIT_TEXT(CDI_LIMIT_HANG_WARNING_S), .value = "SECONDS", .ours = true,
     .help = "when ranks have waited this long in a collective, or PyTorch's workers have used no processor, print which "
             "ranks are behind, and where; 0: never"},
    {.name = "hang_timeout", .group = GROUP_FAILURE, .kind = FLAG_SECONDS, AT(hang_timeout_ms), RANGE(0, 86400000),
     .fallback = CDI_LIMIT_TEXT(CDI_LIMIT_HANG_S), .value = "SECONDS", .ours = true,
     .help = "when they have waited this long in a collective of libcddp, do what --on_hang says; 0: never"},
    {.name = "on_hang", .group = GROUP_FAILURE, .kind = FLAG_CHOICE, AT(on_hang), .fallback = "stop",
     .value = "report|restart|stop", .ours = true,
     .help = "after --hang_timeout: report prints where the ranks are; restart is a failure, which --max_restarts "
             "counts; stop ends the job"},
    {.name = "shutdown_timeout", .group = GROUP_FAILURE, .kind = FLAG_SECONDS, AT(shutdown_timeout_ms),
     RANGE(0, 86400000), .shown_default = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, " CDI_LIMIT_TEXT(CDI_LIMIT_GRACE_S),
     .value = "SECONDS",
     .help = "time from SIGTERM to SIGKILL whenever workers are stopped"},
    {.name = "signals_to_handle", .group = GROUP_FAILURE, .kind = FLAG_SIGNALS, AT(signals_to_handle),
     .fallback = "SIGTERM,SIGINT,SIGHUP,SIGQUIT", .value = "NAME,...",
     .help = "signals that end the job: cddprun forwards them to the workers and stops; of these four, SIGUSR1 and "
             "SIGUSR2, the others are forwarded only; those ignored at cddprun's start stay so (SIGINT and "
             "SIGQUIT after & in a script: use SIGTERM)"},
    {.name = "stop_signals", .group = GROUP_FAILURE, .kind = FLAG_SIGNALS, AT(stop_signals), .value = "NAME,...",
     .ours = true,
     .help = "signals, such as USR1, that cddprun takes as a request to stop: workers that call cddp_should_stop get no "
             "signal, however often it comes, and agree to save and leave; the others are ended by SIGTERM"},
    {.name = "stop_exit_code", .group = GROUP_FAILURE, .kind = FLAG_NUMBER, AT(stop_exit_code), RANGE(0, 255),
     .fallback = "0", .value = "STATUS", .ours = true,
     .help = "exit status of cddprun after an orderly stop, in which all ranks agreed by cddp_should_stop and left with "
             "status 0, or with this one"},
    {.name = "monitor_interval", .group = GROUP_TORCHRUN, .kind = FLAG_SECONDS, AT(monitor_interval_ms),
     RANGE(0, 86400000), .fallback = "0.1", .value = "SECONDS",
     .help = "accepted for compatibility and ignored: cddprun detects exits immediately"},
    /* ----------------------------------------------------------------------------------------------------- logs */
    {.name = "log_dir", .group = GROUP_LOGS, .kind = FLAG_TEXT, AT(log_dir), RANGE(1, 4095), .value = "DIRECTORY",
     .help = "directory for the files of --redirects and --tee and for error files; each run creates its own "
             "directory in it"},
    {.name = "redirects", .shorts = "r", .group = GROUP_LOGS, .kind = FLAG_RANK_MAP, AT(redirects), .fallback = "0",
     .value = "MAP",
     .help = "write these streams to files instead of showing them: 0 none, 1 stdout, 2 stderr, 3 both; for all "
             "workers, or by local rank, such as 0:1,12:3"},
    {.name = "tee", .shorts = "t", .group = GROUP_LOGS, .kind = FLAG_RANK_MAP, AT(tee), .fallback = "0",
     .value = "MAP",
     .help = "show these streams and write them to files, too: in --log_dir, or in a new directory in TMPDIR, whose "
             "name cddprun prints"},
    {.name = "local_ranks_filter", .group = GROUP_LOGS, .kind = FLAG_RANKS, AT(local_ranks_filter),
     .shown_default = "all", .value = "N,...",
     .help = "show the output of these local ranks only; files get the output of all"},
    {.name = "duplicate_stdout_filters", .group = GROUP_TORCHRUN, .kind = FLAG_TEXT, AT(duplicate_stdout_filters),
     RANGE(0, 4095), .value = "TEXT,...",
     .help = "also write lines of stdout that contain one of these texts to a file; ,, is a comma"},
    {.name = "duplicate_stderr_filters", .group = GROUP_TORCHRUN, .kind = FLAG_TEXT, AT(duplicate_stderr_filters),
     RANGE(0, 4095), .value = "TEXT,...", .help = "the same for stderr"},
    {.name = "pty", .group = GROUP_LOGS, .kind = FLAG_CHOICE, AT(pty), .fallback = "auto", .value = ""
                                                                                                    "auto|always|never",
     .ours = true,
     .help = "make a worker's stdout a pseudo-terminal, so that programs see a terminal and a C program's lines "
             "appear immediately and survive a crash; auto: if the stream is shown and cddprun's own stdout is a "
             "terminal"},
    {.name = "status_fd", .group = GROUP_LOGS, .kind = FLAG_NUMBER, AT(status_fd), RANGE(1, 1 << 20), .value = "N",
     .ours = true, .help = "write job events as JSON lines to this open file descriptor"},
    {.name = "trace", .env = "CDDP_TRACE", .group = GROUP_LOGS, .kind = FLAG_TEXT, AT(trace), RANGE(1, 4000),
     .value = "FILE", .ours = true,
     .help = "write a trace of all nodes to this file on node 0: steps, collectives, restarts and failures, for "
             "ui.perfetto.dev or chrome://tracing (docs/tracing.md); give it on every node"},
    {.name = "trace_max", .group = GROUP_LOGS, .kind = FLAG_NUMBER, AT(trace_max_mib), RANGE(1, 1 << 20),
     .fallback = "256", .value = "MIB", .ours = true,
     .help = "size of FILE and FILE.old together: at half of it FILE becomes FILE.old, so the newest records are kept"},
    {.name = "report", .group = GROUP_LOGS, .kind = FLAG_TEXT, AT(report), RANGE(1, 4095), .value = "FILE.html",
     .ours = true,
     .help = "after the run, write a page about it to this file of node rank 0: rounds, steps per second, "
             "communication, slow ranks, failures; give it on every node"},
    {.name = "progress", .group = GROUP_LOGS, .kind = FLAG_SWITCH, AT(progress), .fallback = "0", .ours = true,
     .help = "show one line about the running job below its output: step, steps per second, slowest rank; only if "
             "stderr is a terminal"},
    {.name = "interactive", .group = GROUP_LOGS, .kind = FLAG_NUMBER, AT(interactive),
     RANGE(0, (int64_t)OPTIONS_MAX_PROCS * OPTIONS_MAX_NODES), .value = "RANK", .ours = true,
     .help = "connect this rank to cddprun's terminal, Ctrl-C included, for example for a debugger"},
    {.name = "stdin", .group = GROUP_LOGS, .kind = FLAG_CHOICE, AT(stdin_to), .fallback = "0", .value = "none|0|all",
     .ours = true,
     .help = "which ranks read cddprun's stdin: none, rank 0, or all, where every rank gets a copy, and one that does "
             "not read it delays the others once 16 MiB wait for it; the remaining ranks read an empty file"},
    {.name = "event_log_handler", .group = GROUP_TORCHRUN, .kind = FLAG_CHOICE, AT(event_log_handler), .fallback = "null",
     .value = "null", .help = "accepted for compatibility: torchrun's other handlers are Python code; use "
                              "--status_fd=2 instead of console",
     .note = "--status_fd=2 writes job events to stderr, as JSON lines; torchrun's other handlers are Python code"},
    {.name = "logs_specs", .env = "", .group = GROUP_TORCHRUN, .kind = FLAG_TEXT, AT(logs_specs), RANGE(0, 255),
     .value = "NAME", .refusal = "it names a Python class of torchrun; use --log_dir, --redirects and --tee",
     .help = "a Python class for torchrun's logs"},
    /* ------------------------------------------------------------------------------------------------ placement */
    {.name = "numa_binding",
     .group = GROUP_PLACE,
     .kind = FLAG_CHOICE,
     AT(numa_binding),
     .fallback = "auto",
     .value = "auto|none|node|socket|exclusive|core-complex",
     .help = "which cores a worker may use: node: those of its GPU's NUMA node (without GPUs, workers are spread "
             "over the nodes); socket: of the socket; exclusive: its own share of the node's; core-complex: one "
             "last-level cache; auto: node, if a node has several"},
    {.name = "report_bindings",
     .group = GROUP_PLACE,
     .kind = FLAG_SWITCH,
     AT(report_bindings),
     .fallback = "0",
     .ours = true,
     .help = "print the cores that each worker may use"},
    {.name = "virtual_local_rank", .group = GROUP_TORCHRUN, .kind = FLAG_SWITCH, AT(virtual_local_rank), .fallback = "0",
     .help = "give every worker LOCAL_RANK=0 and one visible GPU, its own"},
    /* --------------------------------------------------------------------------------------------------- python */
    {.name = "module", .shorts = "m", .group = GROUP_PYTHON, .kind = FLAG_SWITCH, AT(module), .fallback = "0",
     .help = "PROGRAM is a Python module: run python3 -u -m PROGRAM"},
    {.name = "no_python", .group = GROUP_PYTHON, .kind = FLAG_SWITCH, AT(no_python), .fallback = "0",
     .help = "run PROGRAM directly even if its name ends in .py; other programs always run directly"},
    {.name = "run_path", .group = GROUP_PYTHON, .kind = FLAG_SWITCH, AT(run_path), .fallback = "0",
     .help = "PROGRAM is a Python script, whatever its name"},
    {.name = "start_method", .group = GROUP_TORCHRUN, .kind = FLAG_CHOICE, AT(start_method), .fallback = "spawn",
     .value = "spawn", .help = "accepted for compatibility: torchrun's other methods (fork, forkserver) start Python "
                               "functions, not programs",
     .note = "torchrun's other methods start Python functions, and cddprun starts programs; remove it"},
    /* --------------------------------------------------------------------------------------------------- others */
    {.name = "dry_run",
     .group = GROUP_OTHER,
     .kind = FLAG_SWITCH,
     AT(dry_run),
     .fallback = "0",
     .ours = true,
     .help = "start nothing; print what would run on this node as JSON: nodes, ranks, devices, cores, commands, "
             "variables; fails as the start would if the program or the address is not found; with --hosts by ssh, for "
             "each of them"},
    {.name = "top", .env = "", .group = GROUP_OTHER, .kind = FLAG_TEXT, AT(top), RANGE(1, 255),
     .value = "HOST[:PORT]", .ours = true,
     .help = "start nothing; show the running jobs of the rendezvous at this endpoint on the terminal, the late "
             "ranks first; q quits"},
    {.name = "where",
     .env = "",
     .group = GROUP_OTHER,
     .kind = FLAG_TEXT,
     AT(where),
     RANGE(1, 255),
     .value = "JOB|HOST[:PORT]",
     .ours = true,
     .help = "start nothing; print where each rank of a running job is now: the job of the rendezvous at this "
             "endpoint, by default at port 29400 or 29500, or the job of this name at --rdzv_endpoint or MASTER_ADDR"},
    {.name = "make_token", .env = "", .group = GROUP_OTHER, .kind = FLAG_TEXT, AT(make_token), RANGE(1, 4095),
     .value = "FILE", .ours = true,
     .help = "start nothing; write a new auth token for --auth_token_file to this file, which must not exist"},
    {.name = "version", .env = "", .group = GROUP_OTHER, .kind = FLAG_VERSION, .ours = true,
     .help = "print the version"},
    {.name = "help", .shorts = "h", .env = "", .group = GROUP_OTHER, .kind = FLAG_HELP, .help = "print this text"},
};
/* clang-format on */
const size_t n_flags = sizeof flags / sizeof flags[0];

const char *flag_env(const struct flag *f, char *buf)
{
    size_t n = 0;

    if (f->env != NULL) {
        (void)snprintf(buf, FLAG_NAME_MAX + 4, "%s", f->env);
        return buf;
    }
    n = (size_t)snprintf(buf, FLAG_NAME_MAX + 4, "PET_%s", f->name);
    for (size_t i = 4; i < n; i++)
        if (buf[i] >= 'a' && buf[i] <= 'z')
            buf[i] = (char)(buf[i] - 'a' + 'A');
    return buf;
}

bool flag_takes_value(const struct flag *f)
{
    return f->kind != FLAG_SWITCH && f->kind != FLAG_HELP && f->kind != FLAG_VERSION;
}

bool flag_is_short(const struct flag *f, const char *word, size_t len)
{
    for (const char *p = f->shorts; p != NULL && *p != '\0'; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");

        if (n == len && memcmp(p, word, n) == 0)
            return true;
        p += n;
    }
    return false;
}
