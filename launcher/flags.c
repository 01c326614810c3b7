/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/flags.h"

#include "launcher/options.h"

#include <stdio.h>
#include <string.h>

#define AT(member) .offset = offsetof(struct options, member)
#define RANGE(low, high) .min = (low), .max = (high)

const char *const flag_groups[N_GROUPS] = {
    [GROUP_JOB] = "What runs",          [GROUP_NODES] = "Several machines", [GROUP_FAILURE] = "Failures and the end",
    [GROUP_LOGS] = "Output and logs",   [GROUP_PLACE] = "Placement",        [GROUP_PYTHON] = "Python programs",
    [GROUP_OTHER] = "The command line",
};

/* clang-format off */
const struct flag flags[] = {
    /* ------------------------------------------------------------------------------------------------ what runs */
    {.name = "nproc_per_node", .shorts = "ppn", .group = GROUP_JOB, .kind = FLAG_NPROC, AT(nproc),
     RANGE(1, OPTIONS_MAX_PROCS), .fallback = "1", .value = "N|cpu|gpu|auto",
     .help = "workers on this machine: a number, one per usable core, one per GPU, or GPUs if there are any, else cores"},
    {.name = "world_size", .shorts = "n np", .env = "", .group = GROUP_JOB, .kind = FLAG_NUMBER, AT(world_size),
     RANGE(1, (int64_t)OPTIONS_MAX_PROCS * OPTIONS_MAX_NODES), .value = "N", .ours = true,
     .help = "workers on all machines together; with -ppn it tells how many machines there are"},
    {.name = "standalone", .group = GROUP_JOB, .kind = FLAG_SWITCH, AT(standalone), .fallback = "0",
     .help = "one machine, any free port; jobs side by side do not disturb each other"},
    {.name = "rdzv_id", .group = GROUP_JOB, .kind = FLAG_TEXT, AT(run_id), RANGE(1, 255), .value = "NAME",
     .shown_default = "random; several machines: none",
     .help = "the job's name, TORCHELASTIC_RUN_ID of the workers"},
    {.name = "role", .group = GROUP_JOB, .kind = FLAG_TEXT, AT(role), RANGE(1, 255), .fallback = "default",
     .value = "NAME", .help = "ROLE_NAME of the workers"},
    {.name = "export", .shorts = "x", .env = "", .group = GROUP_JOB, .kind = FLAG_EXPORT, .value = "NAME[=VALUE]",
     .ours = true,
     .help = "a variable for the workers, or one of cddprun's own that must be set; may be given again and again"},
    /* ----------------------------------------------------------------------------------------- several machines */
    {.name = "nnodes", .group = GROUP_NODES, .kind = FLAG_NNODES, AT(min_nodes), RANGE(1, OPTIONS_MAX_NODES),
     .fallback = "1", .value = "N|MIN:MAX|MIN:",
     .help = "machines; one cddprun is started on each, with the same flags but for --node_rank and --nproc_per_node; "
             "with MIN:MAX the job goes on with those that are there when one is lost, leaves or comes; MIN: takes "
             "MAX from the Slurm step"},
    {.name = "node_rank", .group = GROUP_NODES, .kind = FLAG_NUMBER, AT(node_rank), RANGE(0, OPTIONS_MAX_NODES - 1),
     .shown_default = "as they come", .value = "N", .help = "which of them this is, from 0"},
    {.name = "master_addr", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(master_addr), RANGE(1, 255),
     .shown_default = "127.0.0.1; several machines: MASTER_ADDR", .value = "ADDRESS",
     .help = "where the job's store listens: an address of node 0"},
    {.name = "master_port", .group = GROUP_NODES, .kind = FLAG_NUMBER, AT(master_port), RANGE(0, 65535),
     .shown_default = "any free one; several machines: MASTER_PORT, 29500", .value = "PORT", .help = "its port"},
    {.name = "rdzv_endpoint", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(rdzv_endpoint), RANGE(0, 255),
     .shown_default = "port 29400", .value = "HOST[:PORT]",
     .help = "the same in one word; whoever can bind that address hosts, if there are no node ranks"},
    {.name = "rdzv_backend", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(rdzv_backend), RANGE(1, 255),
     .value = "static|c10d", .help = "accepted: both mean the rendezvous that cddprun brings itself"},
    {.name = "rdzv_conf", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(rdzv_conf), RANGE(0, 1023), .value = "K=V,...",
     .shown_default = "join_timeout=600,last_call_timeout=3,lease=15",
     .help = "join_timeout=S: until enough nodes must be there (timeout is the same); last_call_timeout=S: with MIN "
             "nodes there, how long more may come (only before the first round, if not given); lease=S, or "
             "keep_alive_interval=S and keep_alive_max_attempt=N: a silent node counts as there for so long; "
             "close_timeout=S: when connections of a job that is over are closed; what the first node says counts; "
             "is_host=0|1: who hosts; rank=N; limits of who hosts, as of cddp-rendezvous: store_memory=SIZE, buffer_memory=SIZE, "
             "max_key=SIZE, max_value=SIZE, max_waits=N, max_connections=N"},
    {.name = "local_addr", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(local_addr), RANGE(1, 255),
     .shown_default = "its host name", .value = "ADDRESS", .help = "what messages call this machine"},
    {.name = "auth_token_file", .env = "CDDP_AUTH_TOKEN_FILE", .group = GROUP_NODES, .kind = FLAG_TEXT,
     AT(auth_token_file), RANGE(1, 255), .value = "FILE", .ours = true,
     .help = "the job's secret, which agents and libcddp prove to the rendezvous; --standalone makes one by itself"},
    {.name = "hosts",
     .group = GROUP_NODES,
     .kind = FLAG_TEXT,
     AT(hosts),
     RANGE(0, 65535),
     .value = "HOST[:N],...",
     .ours = true,
     .help = "start cddprun on each of these machines by ssh, from here, with N workers (else --nproc_per_node); the first is "
             "node 0"},
    {.name = "rank_order",
     .group = GROUP_NODES,
     .kind = FLAG_TEXT,
     AT(rank_order),
     RANGE(1, 4095),
     .shown_default = "names in the order of people, node7 before node66",
     .value = "FILE",
     .ours = true,
     .help = "the machines in the order of their ranks, one a line; the first is where they meet if nothing else says it"},
    {.name = "spares", .group = GROUP_NODES, .kind = FLAG_NUMBER, AT(spares), RANGE(0, OPTIONS_MAX_NODES - 1),
     .fallback = "0", .value = "N", .ours = true,
     .help = "machines more than --nnodes that wait until one of those is lost"},
    {.name = "topology", .env = "CDDP_TOPOLOGY", .group = GROUP_NODES, .kind = FLAG_TEXT, AT(topology), RANGE(1, 255),
     .value = "TEXT", .ours = true,
     .help = "where in the network this machine is, as row3.rack7: machines whose texts sort together get neighbouring "
             "ranks"},
    /* ------------------------------------------------------------------------------------------------- failures */
    {.name = "max_restarts", .group = GROUP_FAILURE, .kind = FLAG_NUMBER, AT(max_restarts), RANGE(0, 1000000),
     .fallback = "0", .value = "N", .help = "how often all workers are started again after one has failed"},
    {.name = "on_failure", .group = GROUP_FAILURE, .kind = FLAG_CHOICE, AT(on_failure), .fallback = "stop",
     .value = "stop|wait", .ours = true,
     .help = "what becomes of the other workers when one has failed: stop ends them, wait leaves them alone (libcddp "
             "tells them who died)"},
    {.name = "shutdown_timeout", .group = GROUP_FAILURE, .kind = FLAG_SECONDS, AT(shutdown_timeout_ms),
     RANGE(0, 86400000), .shown_default = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, 30", .value = "SECONDS",
     .help = "from SIGTERM until SIGKILL, whatever the reason for which workers are stopped"},
    {.name = "signals_to_handle", .group = GROUP_FAILURE, .kind = FLAG_SIGNALS, AT(signals_to_handle),
     .fallback = "SIGTERM,SIGINT,SIGHUP,SIGQUIT", .value = "NAME,...",
     .help = "signals that end the job, and reach the workers first; of these four, SIGUSR1 and SIGUSR2 those that are "
             "not named are handed on, and the job goes on"},
    {.name = "monitor_interval", .group = GROUP_FAILURE, .kind = FLAG_SECONDS, AT(monitor_interval_ms),
     RANGE(0, 86400000), .fallback = "0.1", .value = "SECONDS",
     .help = "accepted and without effect: cddprun is told of an exit at once and never looks for one"},
    /* ----------------------------------------------------------------------------------------------------- logs */
    {.name = "log_dir", .group = GROUP_LOGS, .kind = FLAG_TEXT, AT(log_dir), RANGE(1, 4095), .value = "DIRECTORY",
     .help = "where the files of --redirects and --tee and the error files go, in a directory of this run"},
    {.name = "redirects", .shorts = "r", .group = GROUP_LOGS, .kind = FLAG_RANK_MAP, AT(redirects), .fallback = "0",
     .value = "MAP",
     .help = "which streams go to files instead: 0 none, 1 stdout, 2 stderr, 3 both, for all workers or by local rank, as 0:1,12:3"},
    {.name = "tee", .shorts = "t", .group = GROUP_LOGS, .kind = FLAG_RANK_MAP, AT(tee), .fallback = "0",
     .value = "MAP", .help = "which streams are shown and go to files in --log_dir too"},
    {.name = "local_ranks_filter", .group = GROUP_LOGS, .kind = FLAG_RANKS, AT(local_ranks_filter),
     .shown_default = "all", .value = "N,...",
     .help = "the local ranks whose output is shown; files have everybody's"},
    {.name = "duplicate_stdout_filters", .group = GROUP_LOGS, .kind = FLAG_TEXT, AT(duplicate_stdout_filters),
     RANGE(0, 4095), .value = "TEXT,...",
     .help = "lines of stdout that go to a file too which contain one of these; ,, is a comma"},
    {.name = "duplicate_stderr_filters", .group = GROUP_LOGS, .kind = FLAG_TEXT, AT(duplicate_stderr_filters),
     RANGE(0, 4095), .value = "TEXT,...", .help = "the same of stderr"},
    {.name = "pty", .group = GROUP_LOGS, .kind = FLAG_CHOICE, AT(pty), .fallback = "auto", .value = "auto|always|never",
     .ours = true,
     .help = "whether a worker's stdout is a pseudo-terminal: a C program's lines come as they are printed and survive a "
             "crash, and programs see a terminal; auto: where it is shown and cddprun's own stdout is a terminal"},
    {.name = "status_fd", .group = GROUP_LOGS, .kind = FLAG_NUMBER, AT(status_fd), RANGE(1, 1 << 20), .value = "N",
     .ours = true, .help = "an open descriptor to which what happens is written, as JSON lines"},
    {.name = "interactive", .group = GROUP_LOGS, .kind = FLAG_NUMBER, AT(interactive),
     RANGE(0, (int64_t)OPTIONS_MAX_PROCS * OPTIONS_MAX_NODES), .value = "RANK", .ours = true,
     .help = "this rank has cddprun's terminal for itself, Ctrl-C included, as for a debugger"},
    {.name = "event_log_handler", .group = GROUP_LOGS, .kind = FLAG_CHOICE, AT(event_log_handler), .fallback = "null",
     .value = "null", .help = "accepted: torchrun's others are Python code; --status_fd=2 is its console",
     .note = "--status_fd=2 writes what happens on stderr, as JSON lines, and torchrun's other handlers are Python code"},
    {.name = "logs_specs", .env = "", .group = GROUP_LOGS, .kind = FLAG_TEXT, AT(logs_specs), RANGE(0, 255),
     .value = "NAME", .refusal = "it names a Python class of torchrun's; use --log_dir, --redirects and --tee",
     .help = "a Python class for torchrun's logs"},
    /* ------------------------------------------------------------------------------------------------ placement */
    {.name = "numa_binding",
     .group = GROUP_PLACE,
     .kind = FLAG_CHOICE,
     AT(numa_binding),
     .fallback = "auto",
     .value = "auto|none|node|socket|exclusive|core-complex",
     .help = "which cores a worker may run on: all of its GPU's NUMA node (without GPUs the workers are dealt out to the nodes), "
             "of the socket, its own share of the node's, or one last-level cache; auto is node where a machine has several"},
    {.name = "report_bindings",
     .group = GROUP_PLACE,
     .kind = FLAG_SWITCH,
     AT(report_bindings),
     .fallback = "0",
     .ours = true,
     .help = "say which cores each worker may run on"},
    {.name = "virtual_local_rank", .group = GROUP_PLACE, .kind = FLAG_SWITCH, AT(virtual_local_rank), .fallback = "0",
     .help = "every worker has LOCAL_RANK=0 and sees one GPU, its own"},
    /* --------------------------------------------------------------------------------------------------- python */
    {.name = "module", .shorts = "m", .group = GROUP_PYTHON, .kind = FLAG_SWITCH, AT(module), .fallback = "0",
     .help = "PROGRAM is a Python module: run python3 -u -m PROGRAM"},
    {.name = "no_python", .group = GROUP_PYTHON, .kind = FLAG_SWITCH, AT(no_python), .fallback = "0",
     .help = "run PROGRAM directly even if its name ends in .py; other programs always are"},
    {.name = "run_path", .group = GROUP_PYTHON, .kind = FLAG_SWITCH, AT(run_path), .fallback = "0",
     .help = "PROGRAM is a Python script, whatever its name"},
    {.name = "start_method", .group = GROUP_PYTHON, .kind = FLAG_CHOICE, AT(start_method), .fallback = "spawn",
     .value = "spawn", .help = "accepted: torchrun's others (fork, forkserver) are for Python functions, not for programs",
     .note = "the others tell torchrun how to start Python functions, and cddprun starts programs; leave it out"},
    /* --------------------------------------------------------------------------------------------------- others */
    {.name = "dry_run",
     .group = GROUP_OTHER,
     .kind = FLAG_SWITCH,
     AT(dry_run),
     .fallback = "0",
     .ours = true,
     .help = "start nothing; print what would run here as JSON: nodes, ranks, devices, cores, commands, variables"},
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
