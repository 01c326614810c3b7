/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/metrics.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "common/thread.h"
#include "worker/reducer/stats.h"
#include "worker/reducer/stats_text.h"

#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METRICS_ENV "CDDP_METRICS_FILE"
#define EVERY_MS 10000
#define STACK_BYTES (256u * 1024)

struct cdi_metrics {
    cddp_ddp *ddp;
    int rank;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool runs, stopping;                  /* the thread */
    char path[PATH_MAX], fresh[PATH_MAX]; /* the second one becomes the first one */
    char text[CDI_STATS_TEXT];
};

static bool write_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t written = write(fd, text, n);

        if (written <= 0)
            return false;
        text += written;
        n -= (size_t)written;
    }
    return true;
}

static void write_file(struct cdi_metrics *m)
{
    cddp_ddp_stats stats;
    CDI_AUTOCLOSE int fd = -1;
    size_t n;

    cdi_stats_read(m->ddp, &stats); /* also after cddp_finalize(), before cddp_ddp_destroy() */
    n = cdi_stats_text(&stats, m->rank, m->ddp->name, m->text);
    (void)unlink(m->fresh); /* left by a process of the same number, or planted */
    fd = open(m->fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0 && (!write_all(fd, m->text, n) || rename(m->fresh, m->path) != 0))
        (void)unlink(m->fresh);
}

static void *metrics_main(void *arg)
{
    struct cdi_metrics *m = arg;
    bool stopping = false;

    while (!stopping) {
        int64_t until = cdi_now_ms() + EVERY_MS;
        const struct timespec at = {.tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000};
        int rc = 0;

        (void)pthread_mutex_lock(&m->lock);
        while (!m->stopping && rc == 0)
            rc = pthread_cond_timedwait(&m->changed, &m->lock, &at);
        stopping = m->stopping;
        (void)pthread_mutex_unlock(&m->lock);
        write_file(m);
    }
    return NULL;
}

/* Returns 0 or errno. */
static int start_thread(struct cdi_metrics *m)
{
    (void)pthread_mutex_init(&m->lock, NULL);
    cdi_cond_init_monotonic(&m->changed);
    return cdi_thread_create(&m->thread, STACK_BYTES, metrics_main, m);
}

static atomic_uint n_started;

cddp_status cdi_metrics_create(cddp_ddp *d, struct cdi_error *err)
{
    const char *pattern = cdi_env_str(METRICS_ENV);
    struct cdi_metrics *m;

    if (pattern == NULL || d->stats == NULL)
        return CDDP_OK;
    d->metrics = m = calloc(1, sizeof *m);
    if (m == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %s", METRICS_ENV);
    m->ddp = d;
    m->rank = cdi_rank_of_job(cdi_comm_world(d->comm), cdi_comm_world(d->comm)->rank);
    if (!cdi_stats_file_name(pattern, m->rank, d->name, m->path, sizeof m->path - 36))
        return cdi_fail(
            err, CDDP_E_INVALID,
            "%s='%.200s' is not a file's name, in which %%r stands for the rank, %%m for the model, and %%%% "
            "for a percent sign",
            METRICS_ENV, pattern);
    /* Another reducer of this process may write to the same path. */
    (void)snprintf(m->fresh, sizeof m->fresh, "%.*s.%d.%u.tmp", PATH_MAX - 36, m->path, (int)getpid(),
                   atomic_fetch_add(&n_started, 1));
    return CDDP_OK;
}

void cdi_metrics_start(cddp_ddp *d)
{
    char text[160];
    int rc;

    if (d->metrics == NULL)
        return;
    rc = start_thread(d->metrics);
    d->metrics->runs = rc == 0;
    if (rc == 0)
        return;
    (void)snprintf(text, sizeof text, "%s: this rank writes no file: cannot start a thread: %s", METRICS_ENV,
                   strerror(rc));
    cddp_log(d->comm, CDDP_LOG_ALL, CDDP_LOG_WARN, text);
}

void cdi_metrics_stop(cddp_ddp *d)
{
    struct cdi_metrics *m = d->metrics;

    d->metrics = NULL;
    if (m != NULL && m->runs) {
        (void)pthread_mutex_lock(&m->lock);
        m->stopping = true;
        (void)pthread_cond_signal(&m->changed);
        (void)pthread_mutex_unlock(&m->lock);
        (void)pthread_join(m->thread, NULL);
        (void)pthread_cond_destroy(&m->changed);
        (void)pthread_mutex_destroy(&m->lock);
    }
    free(m);
}
