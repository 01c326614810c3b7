/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flight pages that a worker has overwritten, and all that an agent makes of them: reports and records of a node are
 * decoded by the other side, and the texts end. The first byte says how: even: the rest, again and again, is the page;
 * odd: words of it, each as its number (two bytes) and its value (eight).
 */
#include "launcher/agent/progress.h"
#include "launcher/agent/rank_report.h"
#include "protocol/flight_crash.h"
#include "protocol/flight_stop.h"
#include "watch/trace/trace_collect.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define WORD (2 + sizeof(uint64_t))
#define NOW_NS INT64_C(1000000000000)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct cdi_flight *agent, *worker, *part;
static uint8_t *raw, *before; /* the page as a worker sees it; the page before the input */
static size_t page_size;

/* A page with a record of each kind, once. */
static void make_page(void)
{
    char env[128];
    struct stat sb;
    int fd;

    if (cdi_flight_create(&agent, 0, &fd, NULL) != CDDP_OK || fstat(fd, &sb) != 0)
        abort();
    cdi_flight_env(agent, fd, fd, env, sizeof env);
    if (cdi_flight_attach(&worker, env, NULL) != CDDP_OK || cdi_flight_attach(&part, NULL, NULL) != CDDP_OK)
        abort();
    for (uint64_t i = 0; i < CDI_FLIGHT_STEPS; i++) {
        uint64_t seq = cdi_flight_enqueue(worker, CDI_FLIGHT_ALL_REDUCE, 8, 100, 0);

        cdi_flight_start(worker, seq);
        (void)cdi_flight_end(worker, seq, 1, 0);
        cdi_flight_step_done(worker, &(struct cdi_flight_step){.step = i, .begun_ns = 10, .end_ns = 20});
        cdi_flight_mark(worker, CDI_MARK_SAVE, i, 1, 2);
    }
    cdi_flight_set_names(worker, 0, "weight");
    cdi_flight_mirror(part, worker, "'tp' (ranks 0, 2)");
    cdi_flight_start(part, cdi_flight_enqueue(part, CDI_FLIGHT_SEND, 0, 0, -1));
    page_size = (size_t)sb.st_size;
    raw = mmap(NULL, page_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    before = malloc(page_size);
    if (raw == MAP_FAILED || before == NULL)
        abort();
    memcpy(before, raw, page_size);
}

static void overwrite(const uint8_t *data, size_t size)
{
    memcpy(raw, before, page_size);
    if (data[0] % 2 == 0)
        for (size_t i = 0; size > 1 && i < page_size; i++)
            raw[i] = data[1 + i % (size - 1)];
    for (size_t at = 1; data[0] % 2 == 1 && at + WORD <= size; at += WORD) {
        size_t word = (size_t)(data[at] | data[at + 1] << 8) % (page_size / sizeof(uint64_t));

        memcpy(raw + word * sizeof(uint64_t), data + at + 2, sizeof(uint64_t));
    }
}

static void read_report(void)
{
    struct cdi_rank_report rank = {.rank = 0, CDI_RANK_UNKNOWN};
    struct cdi_node_report r = {.n_ranks = 1, .ranks = &rank}, back;
    json_t *root;

    rank_report_page(agent, NOW_NS, &rank);
    root = cdi_node_report_encode(&r);
    if (root == NULL || cdi_node_report_decode(root, &back, NULL) != CDDP_OK)
        abort();
    cdi_node_report_release(&back);
    json_decref(root);
}

static void read_records(bool ended)
{
    const struct trace_source from = {.page = agent, .ended = ended, .now_ns = NOW_NS, .room = CDI_RECORDS_MAX};
    struct trace_cursor cursor = {0};
    struct cdi_records r, back;
    size_t len;
    char *text;

    if (cdi_records_init(&r, NULL) != CDDP_OK)
        abort();
    r.node_rank = 0;
    (void)trace_collect(&cursor, &from, &r);
    text = cdi_records_encode(&r, &len);
    if (text == NULL || cdi_records_decode(text, len, &back, NULL) != CDDP_OK)
        abort();
    cdi_records_release(&back);
    cdi_records_release(&r);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cdi_rank_report ranks[2] = {{CDI_RANK_UNKNOWN, .rank = 0}, {CDI_RANK_UNKNOWN, .rank = 1}};
    char progress[PROGRESS_TEXT];
    struct cdi_flight_crash note;
    struct cdi_stop_view stop;

    if (size == 0)
        return 0;
    if (agent == NULL)
        make_page();
    overwrite(data, size);
    read_report();
    read_records((data[0] & 2) != 0);
    for (int i = 0; i < 2; i++)
        rank_report_page(agent, NOW_NS, &ranks[i]);
    progress_text(ranks, 2, progress, sizeof progress);
    cdi_stop_look(cdi_flight_stop(agent), &stop);
    if (stop.rank < -1 || stop.step < -1 || stop.agreed > CDI_STOP_RANK)
        abort();
    if (cdi_crash_look(cdi_flight_crash(agent), &note) != CDI_CRASH_NONE &&
        (note.pid <= 0 || note.signal <= 0 || note.signal >= NSIG || note.n_registers > CDI_CRASH_REGISTERS))
        abort();
    cdi_flight_tell_ended(agent, 1);
    cdi_flight_tell_death(agent, 1, "rank 1 died");
    return 0;
}
