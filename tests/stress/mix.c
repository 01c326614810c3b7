/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random mix of everything that ranks do with each other, over several layouts of ranks and nodes (which are
 * emulated: between them there is TCP). A seed decides what is done; each rank compares every result with what it
 * computes alone.
 *
 *     mix --seconds 10                  as scripts/test runs it
 *     mix --full                        20 minutes, from a seed that the clock gives; --minutes N
 *     mix --seed 7 --layout 2+1 ...     one run again: a failure prints this line
 *
 * mix_disturbed is the same program, above a build of the library that yields and sleeps at random (chaos.h).
 */
#include "mix.h"
#include "mix_value.h"

#include "worker/store/host.h"

#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RUN_S 150 /* a run that takes longer hangs: the library's own timeouts are shorter */
#define ARGS 24

extern char **environ;

static const char *const layouts[] = {"2", "3", "4", "1+1", "3", "2+1", "4", "1+1+1", "3", "2+2", "4", "1+1+1+1"};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])
static const char *const modes[] = {
    [MIX_ALL] = "all", [MIX_EDGE] = "edge", [MIX_CROSSED] = "crossed", [MIX_ENDS] = "ends"};
static const char *const kinds[] = {"p", "p", "cp", "cpsrt"};
/* The library is disturbed once in so many accesses. */
static const unsigned frequencies[] = {71, 5, 137, 20, 400, 71, 174, 2000};

struct options {
    struct mix mix;
    const char *layout, *mode, *kinds; /* NULL: by the seed */
    int64_t seconds;
    uint64_t runs; /* 0: until the time is over */
    long one_in;   /* -1: by the seed */
    int port;      /* of a rank */
};

struct job {
    int sizes[MIX_RANKS], n_nodes, n;
    pid_t pid[MIX_RANKS];
};

static int64_t now_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static bool parse_layout(const char *text, struct job *j)
{
    *j = (struct job){.n = 0};
    for (const char *at = text;; at += 2) {
        if (*at < '1' || *at > '0' + MIX_RANKS || j->n + *at - '0' > MIX_RANKS)
            return false;
        j->sizes[j->n_nodes++] = *at - '0';
        j->n += *at - '0';
        if (at[1] != '+')
            return at[1] == '\0';
    }
}

/* --------------------------------------------------------------------------------------------------- in a rank ---- */

static void set_number(const char *name, int n)
{
    char text[16];

    (void)snprintf(text, sizeof text, "%d", n);
    (void)setenv(name, text, 1);
}

static int be_rank(const struct options *o, const struct job *j)
{
    static const char *const not_ours[] = {"CDDP_FLIGHT",         "CDDP_AUTH_TOKEN_FILE",       "CDDP_ROUND",
                                           "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "CDDP_TIMEOUT",
                                           "CDDP_SOCKET_IFNAME"};
    struct mix m = o->mix;
    int node = 0, local = m.rank;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (; local >= j->sizes[node]; node++)
        local -= j->sizes[node];
    for (size_t i = 0; i < sizeof not_ours / sizeof not_ours[0]; i++)
        (void)unsetenv(not_ours[i]);
    set_number("RANK", m.rank);
    set_number("WORLD_SIZE", j->n);
    set_number("LOCAL_RANK", local);
    set_number("LOCAL_WORLD_SIZE", j->sizes[node]);
    set_number("GROUP_RANK", node);
    set_number("GROUP_WORLD_SIZE", j->n_nodes);
    set_number("MASTER_PORT", o->port);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    (void)setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    m.size = j->n;
    m.n_nodes = j->n_nodes;
    if (chaos_begin != NULL)
        chaos_begin((unsigned)o->one_in, m.seed * MIX_RANKS + (uint64_t)m.rank);
    return mix_be_rank(&m);
}

/* ----------------------------------------------------------------------------------------------- in the launcher ----
 */

/* The arguments that repeat a run, in one line. */
static void describe(const struct options *o, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "--seed %llu --layout %s --mode %s --kinds %s --ops %u --chaos %ld",
                   (unsigned long long)o->mix.seed, o->layout, o->mode, o->kinds, o->mix.n_ops, o->one_in);
}

static bool start_rank(const struct options *o, int rank, int port, pid_t *pid)
{
    char line[256], number[16], where[16], *args[ARGS] = {"mix", "--rank", number, "--port", where};
    posix_spawnattr_t attr;
    sigset_t none;
    int n = 5;
    bool ok;

    (void)snprintf(number, sizeof number, "%d", rank);
    (void)snprintf(where, sizeof where, "%d", port);
    describe(o, line, sizeof line);
    for (char *rest = line; n < ARGS - 1 && (args[n] = strtok_r(rest, " ", &rest)) != NULL;)
        n++;
    (void)sigemptyset(&none);
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    ok = posix_spawn(pid, "/proc/self/exe", NULL, &attr, args, environ) == 0;
    (void)posix_spawnattr_destroy(&attr);
    return ok;
}

/* Is this end of a rank expected in the run? */
static bool ended_well(const struct options *o, int status)
{
    if (o->mix.mode == MIX_ENDS && ((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
                                    (WIFEXITED(status) && WEXITSTATUS(status) == MIX_LEFT)))
        return true;
    return status == 0;
}

static void kill_all(const struct job *j)
{
    for (int r = 0; r < j->n; r++)
        if (j->pid[r] > 0)
            (void)kill(j->pid[r], SIGKILL);
}

/* Waits until all ranks have ended. SIGCHLD is blocked. */
static bool await(const struct options *o, struct job *j)
{
    int64_t deadline_ms = now_ms() + RUN_S * 1000;
    int left = j->n, status;
    bool ok = true, killed = false;
    sigset_t child;

    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    while (left > 0) {
        struct timespec ts = {.tv_sec = 1};
        pid_t pid = waitpid(-1, &status, WNOHANG);

        if (pid == 0)
            (void)sigtimedwait(&child, NULL, &ts);
        for (int r = 0; pid > 0 && r < j->n; r++) {
            if (j->pid[r] != pid)
                continue;
            left--;
            j->pid[r] = 0;
            if (!ended_well(o, status) && ok && !killed)
                fprintf(stderr, "mix: rank %d ended with status %#x\n", r, (unsigned)status);
            ok = ok && ended_well(o, status);
        }
        if (killed || (ok && now_ms() < deadline_ms))
            continue;
        if (ok)
            fprintf(stderr, "mix: %d ranks have not ended within %d s\n", left, RUN_S);
        ok = false;
        killed = true;
        kill_all(j);
    }
    return ok;
}

static bool run(const struct options *o)
{
    const struct cdi_store_host_options where = {.host = "127.0.0.1"};
    struct cdi_store_host *host;
    struct cdi_error err;
    struct job j;
    bool ok = true;

    if (!parse_layout(o->layout, &j) || cdi_store_host_start(&host, &where, &err) != CDDP_OK) {
        fprintf(stderr, "mix: no such layout, or no store\n");
        return false;
    }
    for (int r = 0; r < j.n && ok; r++)
        ok = start_rank(o, r, cdi_store_host_port(host), &j.pid[r]);
    if (!ok)
        kill_all(&j);
    ok = await(o, &j) && ok;
    cdi_store_host_stop(host);
    return ok;
}

/* Chooses by the seed what the command line leaves open. */
static struct options choose(const struct options *o)
{
    struct options chosen = *o;
    uint64_t seed = o->mix.seed;
    size_t mode = (size_t)(mix_hash(seed, 2, 2) % 16);

    if (o->layout == NULL)
        chosen.layout = layouts[seed % LAYOUTS];
    chosen.mix.mode = mode < 12 ? MIX_ALL : mode < 14 ? MIX_EDGE : mode < 15 ? MIX_CROSSED : MIX_ENDS;
    for (size_t i = 0; o->mode != NULL && i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(o->mode, modes[i]) == 0)
            chosen.mix.mode = (enum mix_mode)i;
    chosen.mode = modes[chosen.mix.mode];
    if (o->kinds == NULL)
        chosen.kinds = kinds[mix_hash(seed, 3, 3) % (sizeof kinds / sizeof kinds[0])];
    chosen.mix.kinds = chosen.kinds;
    if (o->one_in < 0)
        chosen.one_in = frequencies[mix_hash(seed, 4, 4) % (sizeof frequencies / sizeof frequencies[0])];
    if (chaos_begin == NULL)
        chosen.one_in = 0;
    return chosen;
}

static int launch(struct options *o, const char *program)
{
    int64_t until_ms = now_ms() + o->seconds * 1000;
    uint64_t n = 0;
    sigset_t child;
    char line[256];

    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    (void)pthread_sigmask(SIG_BLOCK, &child, NULL);
    printf("mix: from seed %llu\n", (unsigned long long)o->mix.seed);
    (void)fflush(stdout);
    for (; o->runs > 0 ? n < o->runs : n == 0 || now_ms() < until_ms; n++, o->mix.seed++) {
        struct options one = choose(o);

        if (run(&one))
            continue;
        describe(&one, line, sizeof line);
        fprintf(stderr, "mix: run %llu has failed; to repeat it (its timing differs each time):\n    %s --runs 1 %s\n",
                (unsigned long long)n + 1, program, line);
        return 1;
    }
    printf("mix: %llu runs, all right\n", (unsigned long long)n);
    return 0;
}

/* ----------------------------------------------------------------------------------------------- the command line ----
 */

enum { SEED = 1, LAYOUT, MODE, KINDS, OPS, CHAOS, RUNS, SECONDS, MINUTES, FULL, RANK, PORT };

static bool read_options(int argc, char **argv, struct options *o)
{
    static const struct option names[] = {
        {"seed", 1, NULL, SEED},   {"layout", 1, NULL, LAYOUT},   {"mode", 1, NULL, MODE},
        {"kinds", 1, NULL, KINDS}, {"ops", 1, NULL, OPS},         {"chaos", 1, NULL, CHAOS},
        {"runs", 1, NULL, RUNS},   {"seconds", 1, NULL, SECONDS}, {"minutes", 1, NULL, MINUTES},
        {"full", 0, NULL, FULL},   {"rank", 1, NULL, RANK},       {"port", 1, NULL, PORT},
        {NULL, 0, NULL, 0}};

    *o = (struct options){.mix = {.seed = 1, .n_ops = 300, .rank = -1}, .seconds = 10, .one_in = -1};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        long long n = optarg != NULL ? atoll(optarg) : 0;

        if (c == SEED)
            o->mix.seed = (uint64_t)n;
        else if (c == LAYOUT)
            o->layout = optarg;
        else if (c == MODE)
            o->mode = optarg;
        else if (c == KINDS)
            o->kinds = optarg;
        else if (c == OPS)
            o->mix.n_ops = (unsigned)n;
        else if (c == CHAOS)
            o->one_in = (long)n;
        else if (c == RUNS)
            o->runs = (uint64_t)n;
        else if (c == SECONDS || c == MINUTES)
            o->seconds = n * (c == MINUTES ? 60 : 1);
        else if (c == RANK)
            o->mix.rank = (int)n;
        else if (c == PORT)
            o->port = (int)n;
        else if (c == FULL)
            *o = (struct options){
                .mix = {.seed = (uint64_t)time(NULL), .n_ops = 600, .rank = -1}, .seconds = 20 * 60, .one_in = -1};
        else
            return false;
    }
    return optind == argc;
}

int main(int argc, char **argv)
{
    struct options o;
    struct job j;

    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "mix: see the first lines of tests/stress/mix.c\n");
        return 2;
    }
    if (o.mix.rank < 0)
        return launch(&o, argv[0]);
    o = choose(&o);
    if (!parse_layout(o.layout, &j) || o.mix.rank >= j.n)
        return 2;
    return be_rank(&o, &j);
}
