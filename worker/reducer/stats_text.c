/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/stats_text.h"

#include "common/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MODEL_BYTES 64
#define LABELS_BYTES (2 * MODEL_BYTES + 48)

struct text {
    char *buf;
    size_t at;
    char labels[LABELS_BYTES];
};

/* {rank="3",model="generator"}, with the escapes of the format; control characters become '?'. */
static void write_labels(struct text *t, int rank, const char *model)
{
    size_t at = (size_t)snprintf(t->labels, sizeof t->labels, "{rank=\"%d\",model=\"", rank);
    size_t n = model == NULL ? 0 : strnlen(model, MODEL_BYTES);
    char name[MODEL_BYTES];

    cdi_utf8_clean(name, model == NULL ? "" : model, n); /* a label is UTF-8, also where it is cut */
    for (size_t i = 0; i < n; i++) {
        if (name[i] == '"' || name[i] == '\\')
            t->labels[at++] = '\\';
        t->labels[at++] = (unsigned char)name[i] < ' ' || name[i] == '\x7f' ? '?' : name[i];
    }
    memcpy(t->labels + at, "\"}", 3);
}

static void head(struct text *t, const char *name, const char *type, const char *help)
{
    t->at += (size_t)snprintf(t->buf + t->at, CDI_STATS_TEXT - t->at, "# HELP cddp_%s %s\n# TYPE cddp_%s %s\n", name,
                              help, name, type);
}

static void number(struct text *t, const char *name, const char *type, const char *help, uint64_t value)
{
    head(t, name, type, help);
    t->at +=
        (size_t)snprintf(t->buf + t->at, CDI_STATS_TEXT - t->at, "cddp_%s%s %" PRIu64 "\n", name, t->labels, value);
}

static void seconds(struct text *t, const char *name, const char *help, int64_t ns)
{
    uint64_t value = ns > 0 ? (uint64_t)ns : 0;

    head(t, name, "counter", help);
    t->at += (size_t)snprintf(t->buf + t->at, CDI_STATS_TEXT - t->at, "cddp_%s%s %" PRIu64 ".%09" PRIu64 "\n", name,
                              t->labels, value / 1000000000, value % 1000000000);
}

size_t cdi_stats_text(const cddp_ddp_stats *s, int rank, const char *model, char buf[CDI_STATS_TEXT])
{
    struct text t = {.buf = buf};

    write_labels(&t, rank, model);
    number(&t, "steps_total", "counter", "Steps that the times are of.", s->steps);
    seconds(&t, "step_seconds_total", "Time of all steps.", s->step_ns);
    seconds(&t, "forward_seconds_total", "Time from the end of a step to the first gradient of the next one.",
            s->forward_ns);
    seconds(&t, "backward_seconds_total", "Time of steps from the first gradient to the last one.", s->backward_ns);
    seconds(&t, "communication_seconds_total", "Time of steps in which gradients were communicated.", s->comm_ns);
    seconds(&t, "exposed_seconds_total", "Communication for which the program waited.", s->exposed_ns);
    seconds(&t, "thread_seconds_total", "Processor time of hidden communication.", s->thread_ns);
    seconds(&t, "late_seconds_total", "Exposed time until the last rank had arrived.", s->late_ns);
    seconds(&t, "waiting_seconds_total", "Communication in which every bucket waited for its last rank.",
            s->waiting_ns);
    seconds(&t, "transfer_seconds_total", "The rest of the communication, in which buckets were moved.",
            s->transfer_ns);
    number(&t, "gradient_bytes_total", "counter", "Bytes of averaged gradients.", s->bytes);
    number(&t, "buckets", "gauge", "Buckets of gradients.", s->n_buckets);
    number(&t, "bucket_rebuilds_total", "counter", "Changes of the buckets.", s->rebuilds);
    if (s->slowest_rank < 0)
        return t.at;
    number(&t, "slowest_rank", "gauge", "The rank that this one has waited for longest.", (uint64_t)s->slowest_rank);
    number(&t, "slowest_rank_steps", "gauge", "Steps in which it waited for that one longest.", s->slowest_steps);
    return t.at;
}

bool cdi_stats_file_name(const char *pattern, int rank, const char *model, char *buf, size_t cap)
{
    size_t at = 0;

    for (const char *p = pattern; *p != '\0'; p++) {
        char one[MODEL_BYTES + 16] = {*p};
        size_t n;

        if (*p == '%') {
            p++;
            if (*p == 'r')
                (void)snprintf(one, sizeof one, "%d", rank);
            else if (*p == 'm')
                (void)snprintf(one, sizeof one, "%.*s", MODEL_BYTES, model != NULL ? model : "");
            else if (*p != '%')
                return false;
            for (char *c = one; *p == 'm' && *c != '\0'; c++)
                *c = (char)(*c == '/' ? '_' : *c);
        }
        n = strlen(one);
        if (n >= cap - at)
            return false;
        memcpy(buf + at, one, n);
        at += n;
    }
    buf[at] = '\0';
    return at > 0;
}
