/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cddp-preflight: `cddprun --preflight` starts it in place of each worker. One process of each node measures the node
 * and its links; the others wait. Node 0 decides and prints the table. Then every process becomes the user's program,
 * or ends.
 *
 *     cddp-preflight stop|only|exclude GUARD HOST LOCAL_RANK PROGRAM ARGV0 [ARGUMENT...]
 *
 * GUARD is the pid of cddprun's outer process, which takes signals. HOST is the node's name in messages.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "common/log.h"
#include "common/time_limits.h"
#include "preflight/meet.h"
#include "preflight/spare.h"
#include "preflight/table.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES_MAX 100000
#define STORE_MS 60000
#define STOP_S 2       /* in which the node that failed is the first to end, so that the report names it */
#define LEAVE_S 120    /* for the next round, which begins when a node has left */
#define SPARE_MS 10000 /* for a spare node to join, before the node that it replaces leaves */
#define FINDINGS_MAX 65536

enum mode { MODE_STOP, MODE_ONLY, MODE_EXCLUDE };

struct preflight {
    enum mode mode;
    struct meet meet;
    bool first;    /* of this node */
    int64_t guard; /* the process that takes cddprun's signals */
    int port;      /* the rendezvous's */
    int64_t began_ms;
};

static cddp_status read_place(struct preflight *p, struct cdi_error *err)
{
    int64_t rank, workers, node, n_nodes, port;
    const struct {
        const char *name;
        int64_t min, max, *to;
    } variables[] = {{"RANK", 0, INT32_MAX, &rank},
                     {"LOCAL_WORLD_SIZE", 1, INT32_MAX, &workers},
                     {"GROUP_RANK", 0, NODES_MAX - 1, &node},
                     {"GROUP_WORLD_SIZE", 1, NODES_MAX, &n_nodes},
                     {"MASTER_PORT", 1, 65535, &port}};

    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        cddp_status st = cdi_env_int(variables[i].name, variables[i].min, variables[i].max, variables[i].to, err);

        if (st != CDDP_OK)
            return cdi_error_wrap(err, "start it by cddprun --preflight");
    }
    if (node >= n_nodes || !cdi_env_has("MASTER_ADDR"))
        return cdi_fail(err, CDDP_E_INVALID, "start it by cddprun --preflight: GROUP_RANK or MASTER_ADDR is wrong");
    p->meet.rank = (int)rank;
    p->meet.workers = (uint32_t)workers;
    p->meet.node = (uint32_t)node;
    p->meet.n_nodes = (uint32_t)n_nodes;
    p->port = (int)port;
    return cdi_store_open(&p->meet.store, cdi_env_str("MASTER_ADDR"), p->port, STORE_MS, err);
}

/* ------------------------------------------------------------------------------------------------------ node 0 ---- */

/* Gives each bad node the text of its first finding, by which it ends or leaves. *told counts them. */
static cddp_status tell_nodes(const struct preflight *p, const struct preflight_finding *v, size_t n, bool warnings,
                              uint32_t *told, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n && st == CDDP_OK; i++) {
        if (!v[i].error && !warnings)
            continue;
        if (i > 0 && v[i - 1].node == v[i].node && (v[i - 1].error || warnings))
            continue; /* its first one is enough */
        ++*told;
        st = meet_put(&p->meet, "finding", v[i].node, v[i].text, err);
    }
    return st;
}

static cddp_status print_table(const struct preflight *p, const struct preflight_facts *nodes,
                               const struct preflight_finding *v, size_t n, struct cdi_error *err)
{
    struct cdi_buf text;
    cddp_status st;

    cdi_buf_init(&text, 0);
    st = preflight_table(&text, nodes, p->meet.n_nodes, v, n, (double)(cdi_now_ms() - p->began_ms) / 1000);
    if (st == CDDP_OK)
        (void)fwrite(cdi_buf_data(&text), 1, text.len, stderr);
    else
        (void)cdi_fail(err, st, "out of memory for the table");
    cdi_buf_release(&text);
    return st;
}

static bool is_unknown(const struct preflight_facts *nodes, const struct preflight_finding *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!nodes[v[i].node].known)
            return true;
    return false;
}

static cddp_status decide(const struct preflight *p, struct cdi_error *err)
{
    CDI_AUTOFREE struct preflight_facts *nodes = calloc(p->meet.n_nodes, sizeof *nodes);
    size_t cap = (size_t)p->meet.n_nodes * PREFLIGHT_FINDINGS, n;
    CDI_AUTOFREE struct preflight_finding *v = calloc(cap < FINDINGS_MAX ? cap : FINDINGS_MAX, sizeof *v);
    uint32_t told = 0;
    char verdict[32] = "go";
    cddp_status st;

    if (nodes == NULL || v == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for the facts of %u nodes", p->meet.n_nodes);
    st = meet_collect(&p->meet, nodes, err);
    n = preflight_judge(nodes, p->meet.n_nodes, v, cap < FINDINGS_MAX ? cap : FINDINGS_MAX);
    if (st == CDDP_OK)
        st = print_table(p, nodes, v, n, err);
    if (st == CDDP_OK)
        st = tell_nodes(p, v, n, p->mode == MODE_EXCLUDE, &told, err);
    if (told > 0)
        (void)snprintf(verdict, sizeof verdict, "stop %u", told);
    if (st == CDDP_OK)
        st = meet_put(&p->meet, "verdict", 0, verdict, err);
    /* A node that has not reported cannot end the job itself. */
    if (st == CDDP_OK && is_unknown(nodes, v, n))
        st = cdi_fail(err, CDDP_E_TIMEOUT, "a node has not reported; the table above names it");
    return st;
}

/* -------------------------------------------------------------------------------------------------- afterwards ---- */

/* As the shim does it: a file that the kernel does not know is a script for sh. argv[5] is the file, argv[6] its name.
 */
static int run_program(char **argv)
{
    static char shell[] = "/bin/sh";
    char *file = argv[5];
    int why;

    (void)execv(file, argv + 6);
    why = errno;
    if (why == ENOEXEC) {
        argv[5] = shell;
        argv[6] = file;
        (void)execv(shell, argv + 5);
    }
    cdi_log(CDI_LOG_ERROR, "PREFLIGHT-EXEC", "cannot run '%.300s': %s%s", file, strerror(why),
            why == ENOENT ? " (the file, or the interpreter in its first line)" : "");
    return why == ENOENT ? 127 : 126;
}

/* Waits for cddprun, which ends this process because of another one. With --on_failure=wait it does not. */
static int wait_for_end(unsigned seconds)
{
    (void)sleep(seconds);
    return 1;
}

/* A spare node may still be on its way; the job would end if too few nodes remained. */
static int leave_job(const struct preflight *p, uint32_t leaving, const char *why)
{
    bool replaced = spare_wait(cdi_env_str("MASTER_ADDR"), p->port, leaving, SPARE_MS);

    cdi_log(CDI_LOG_WARN, "PREFLIGHT-LEAVE", "node %u leaves the job%s: %s", p->meet.node,
            replaced ? "" : ", and no other node has come to replace it", why);
    (void)kill((pid_t)p->guard, SIGTERM); /* the node leaves as if its user had ended its cddprun */
    return wait_for_end(LEAVE_S);
}

/* What this process does when not all nodes passed; `bad` of them did not. */
static int do_stop(const struct preflight *p, uint32_t bad)
{
    char text[512];

    if (!p->first || !meet_has(&p->meet, "finding", p->meet.node) ||
        !meet_get(&p->meet, "finding", p->meet.node, text, sizeof text, STORE_MS))
        return wait_for_end(p->mode == MODE_EXCLUDE ? LEAVE_S : STOP_S);
    if (p->mode == MODE_EXCLUDE)
        return leave_job(p, bad, text);
    cdi_log(CDI_LOG_ERROR, "PREFLIGHT-FAILED", "node %u cannot take part: %s", p->meet.node, text);
    return 1;
}

static bool read_mode(const char *text, enum mode *out)
{
    static const char *const names[] = {"stop", "only", "exclude"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (enum mode)i;
            return true;
        }
    return false;
}

static cddp_status measure_node(struct preflight *p, struct cdi_error *err)
{
    cddp_status st = meet_measure(&p->meet, err);

    if (st != CDDP_OK)
        return st;
    return p->meet.node == 0 ? decide(p, err) : meet_again(&p->meet, err);
}

int main(int argc, char **argv)
{
    struct preflight p = {.began_ms = cdi_now_ms()};
    struct cdi_error err;
    char verdict[32];
    int64_t local_rank;
    bool go;
    int status = 1;
    cddp_status st;

    cdi_log_set_name("cddp-preflight");
    if (argc < 7 || !read_mode(argv[1], &p.mode) || !cdi_parse_int(argv[2], 1, INT32_MAX, &p.guard) ||
        !cdi_parse_int(argv[4], 0, INT32_MAX, &local_rank)) {
        cdi_log(CDI_LOG_ERROR, "PREFLIGHT-USAGE", "this is a part of cddprun; start it by cddprun --preflight PROGRAM");
        return 2;
    }
    p.meet.host = argv[3];
    p.first = local_rank == 0;
    st = read_place(&p, &err);
    if (st == CDDP_OK && p.first)
        st = measure_node(&p, &err);
    if (st == CDDP_OK && !meet_get(&p.meet, "verdict", 0, verdict, sizeof verdict, 1000 * CDI_LIMIT_VERDICT_S))
        st = cdi_fail(&err, CDDP_E_TIMEOUT, "node 0 has not decided within %d s", CDI_LIMIT_VERDICT_S);
    go = st == CDDP_OK && strcmp(verdict, "go") == 0;
    if (st != CDDP_OK)
        cdi_log(CDI_LOG_ERROR, "PREFLIGHT-ERROR", "node %u: %s", p.meet.node, err.msg);
    else if (!go)
        status = do_stop(&p, (uint32_t)strtoul(verdict + strcspn(verdict, " "), NULL, 10));
    cddp_store_close(p.meet.store);
    if (!go)
        return status;
    return p.mode == MODE_ONLY ? 0 : run_program(argv);
}
