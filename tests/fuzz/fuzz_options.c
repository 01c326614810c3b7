/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line and its PET_* variables. Input: words, each followed by a NUL; those before an empty word are
 * NAME=value pairs of the environment, the others argv[1..].
 */
#include "launcher/cli/parse.h"
#include "launcher/plan/endpoint.h"
#include "launcher/remote/hosts.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORDS 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct words {
    const char *v[MAX_WORDS + 1];
    size_t n;
};

static const char *lookup(const char *name, void *arg)
{
    const struct words *env = arg;
    size_t n = strlen(name);

    for (size_t i = 0; i < env->n; i++)
        if (strncmp(env->v[i], name, n) == 0 && env->v[i][n] == '=')
            return env->v[i] + n + 1;
    return NULL;
}

/* Guarantees of a parsed command line. */
static void check(const struct options *o, char **argv, int argc)
{
    if (o->what != OPTIONS_RUN)
        return;
    if (o->command < argv + 1 || o->command >= argv + argc || o->command[0] == NULL || o->command[0][0] == '\0')
        abort();
    if (o->nproc_kind == OPTIONS_NPROC_COUNT && (o->nproc < 1 || o->nproc > OPTIONS_MAX_PROCS))
        abort();
    if (o->min_nodes < 1 || (o->max_nodes != OPTIONS_NODES_AUTO && o->max_nodes < o->min_nodes) || o->node_rank < -1 ||
        o->max_restarts < 0 || o->master_port < -1 || o->master_port > 65535)
        abort();
    if (o->role == NULL || o->tmpdir == NULL || (o->run_id != NULL && strlen(o->run_id) > 255))
        abort();
}

/* And --hosts, whose words are part of a command line. */
static void check_hosts(const struct options *o)
{
    struct cdi_error err = {.status = CDDP_OK};
    char *none[] = {NULL};
    struct hosts h;
    struct hosts_job job = {.hosts = &h,
                            .flags = none,
                            .command = o->command,
                            .env = none,
                            .program = "cddprun",
                            .directory = "/",
                            .master_addr = "a",
                            .master_port = 1};
    struct cdi_buf line;

    if (o->hosts == NULL)
        return;
    if (hosts_parse(&h, o, NULL, &err) != CDDP_OK) {
        if (err.msg[0] == '\0')
            abort();
        return;
    }
    cdi_buf_init(&line, 1 << 20);
    for (uint32_t i = 0; i < h.n; i++)
        if (h.v[i].name[0] == '\0' || h.v[i].name[0] == '-' || h.v[i].n_procs < 0)
            abort();
    if (hosts_script(&line, &job, h.n - 1) == CDDP_OK && cdi_buf_data(&line)[line.len - 1] != '\n')
        abort();
    cdi_buf_release(&line);
    free(h.v);
}

/* And where the nodes meet. */
static void check_endpoint(const struct options *o)
{
    struct cluster_env none = {.in_step = false};
    struct cdi_error err = {.status = CDDP_OK};
    struct endpoint m;

    if (endpoint_decide(&m, o, &none, &err) != CDDP_OK) {
        if (err.msg[0] == '\0' || strchr(err.msg, '\n') != NULL)
            abort();
        return;
    }
    if (m.n_nodes != o->max_nodes + o->spares || m.node_rank < -1 || m.node_rank >= (int32_t)m.n_nodes ||
        m.join_timeout_ms < 1000)
        abort();
    if (m.store.key > CDI_C10D_KEY_MAX || m.store.value > CDI_C10D_VALUE_MAX)
        abort();
    if (m.host[0] == '\0' || strlen(m.host) > 255 || (m.n_nodes > 1 && m.port == 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *argv[MAX_WORDS + 2] = {(char *)(uintptr_t) "cddprun"};
    struct words words = {.n = 0}, env = {.n = 0};
    struct cdi_error err = {.status = CDDP_OK};
    struct options o;
    int argc = 1;

    if (text == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    for (size_t at = 0; at < size && words.n < MAX_WORDS; at += strlen(text + at) + 1)
        words.v[words.n++] = text + at;
    for (size_t i = 0; i < words.n; i++) {
        if (words.v[i][0] == '\0' && env.n == 0 && i > 0) {
            memcpy(env.v, words.v, i * sizeof words.v[0]);
            env.n = i;
            argc = 1;
        } else {
            argv[argc++] = (char *)(uintptr_t)words.v[i];
        }
    }
    argv[argc] = NULL;
    if (options_parse(&o, argc, argv, lookup, &env, &err) == CDDP_OK) {
        check(&o, argv, argc);
        check_endpoint(&o);
        check_hosts(&o);
    } else if (err.msg[0] == '\0' || strchr(err.msg, '\n') != NULL)
        abort(); /* an error is one message */
    free(text);
    return 0;
}
