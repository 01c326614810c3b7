/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double seconds(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

bool progress_open(struct progress *p, const cddp_comm *comm, const char *log, bool keep)
{
    int fd;

    *p = (struct progress){.shown = cddp_rank(comm) == 0, .alone = cddp_world_size(comm) == 1};
    p->terminal = p->shown && isatty(STDOUT_FILENO) == 1;
    if (!p->shown || log == NULL)
        return true;
    fd = open(log, (keep ? O_RDWR : O_WRONLY | O_TRUNC) | O_CREAT | O_CLOEXEC, 0666);
    p->log = fd < 0 ? NULL : fdopen(fd, keep ? "r+" : "w");
    if (p->log == NULL && fd >= 0)
        (void)close(fd);
    return p->log != NULL;
}

bool progress_cut(struct progress *p, int64_t step)
{
    struct stat sb;
    char *line = NULL;
    size_t cap = 0;
    int64_t at;
    off_t end = 0;
    bool ok;

    if (p->log == NULL || (fstat(fileno(p->log), &sb) == 0 && !S_ISREG(sb.st_mode)))
        return true;
    while (getline(&line, &cap, p->log) > 0 && sscanf(line, "{\"step\":%" SCNd64 ",", &at) == 1 && at <= step &&
           strchr(line, '\n') != NULL)
        end = ftello(p->log);
    free(line);
    ok = end >= 0 && ftruncate(fileno(p->log), end) == 0;
    return fseeko(p->log, end, SEEK_SET) == 0 && ok;
}

void progress_begin(struct progress *p, int64_t first, int64_t steps)
{
    p->first = p->last = first;
    p->steps = steps;
    p->began = p->at = seconds();
}

void progress_pause(struct progress *p)
{
    p->paused -= seconds();
}

void progress_go_on(struct progress *p)
{
    p->paused += seconds();
}

void progress_end_line(struct progress *p)
{
    if (p->open)
        (void)putchar('\n');
    p->open = false;
}

/* The part of the communication since the last line that the passes have hidden; NAN: there was none. */
static double hidden_part(struct progress *p, cddp_ddp *ddp)
{
    cddp_ddp_stats s = {.size = sizeof s};
    double part = NAN;

    if (p->alone || cddp_ddp_get_stats(ddp, &s) != CDDP_OK)
        return NAN;
    if (s.comm_ns > p->comm_ns)
        part = (double)(s.hidden_ns - p->hidden_ns) / (double)(s.comm_ns - p->comm_ns);
    p->comm_ns = s.comm_ns;
    p->hidden_ns = s.hidden_ns;
    return part;
}

/* Tells of a failure when it happens, not after hours of training. */
static void flush_log(struct progress *p)
{
    if (fflush(p->log) == 0 || p->error != 0)
        return;
    p->error = errno;
    (void)fprintf(stderr, "gpt: the log cannot be written (%s); training goes on\n", strerror(p->error));
}

/* JSON has no NaN. */
static void write_number(FILE *f, const char *name, double x)
{
    if (isfinite(x))
        (void)fprintf(f, ",\"%s\":%.9g", name, x);
    else
        (void)fprintf(f, ",\"%s\":null", name);
}

static void show(struct progress *p, const struct step_report *r, double rate, double hidden)
{
    const double left = (seconds() - p->began) / (double)(r->step - p->first) * (double)(p->steps - r->step);
    char part[32] = "", time_left[32] = "";

    if (isfinite(hidden))
        (void)snprintf(part, sizeof part, "  %.0f %% hidden", 100 * hidden);
    if (r->step < p->steps)
        (void)snprintf(time_left, sizeof time_left, "  %.0f:%02.0f left", floor(left / 60), floor(fmod(left, 60)));
    (void)printf("%sstep %" PRId64 "/%" PRId64 "  loss %.4f  %.0f tokens/s%s%s%s", p->terminal ? "\r" : "", r->step,
                 p->steps, r->loss, rate, part, time_left, p->terminal ? "\033[K" : "\n");
    p->open = p->terminal;
    (void)fflush(stdout);
}

void progress_step(struct progress *p, const struct step_report *r, cddp_ddp *ddp)
{
    const double now = seconds(), took = now - p->at - p->paused;
    const double rate = (double)(r->step - p->last) * (double)r->tokens / took, hidden = hidden_part(p, ddp);

    p->last = r->step;
    p->at = now;
    p->paused = 0;
    if (p->log != NULL) {
        (void)fprintf(p->log, "{\"step\":%" PRId64, r->step);
        write_number(p->log, "loss", r->loss);
        write_number(p->log, "lr", r->lr);
        write_number(p->log, "norm", r->norm);
        write_number(p->log, "tokens_per_s", rate);
        write_number(p->log, "hidden", hidden);
        (void)fprintf(p->log, "}\n");
        flush_log(p);
    }
    if (p->shown)
        show(p, r, rate, hidden);
}

void progress_held_out(struct progress *p, int64_t step, double loss)
{
    if (p->log != NULL) {
        (void)fprintf(p->log, "{\"step\":%" PRId64, step);
        write_number(p->log, "held_out", loss);
        (void)fprintf(p->log, "}\n");
        flush_log(p);
    }
    progress_end_line(p);
    if (p->shown)
        (void)printf("step %" PRId64 "/%" PRId64 "  held-out loss %.4f, %.3f bits per byte\n", step, p->steps, loss,
                     loss / log(2));
}

bool progress_close(struct progress *p)
{
    FILE *f = p->log;
    p->log = NULL;
    if (f == NULL)
        return true;
    if (fclose(f) != 0 && p->error == 0)
        p->error = errno;
    errno = p->error;
    return p->error == 0;
}
