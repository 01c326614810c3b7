/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/node/hang_report.h"

#include "common/clock.h"
#include "protocol/bulk.h"
#include "watch/node/rank_details.h"

#include <stdlib.h>
#include <string.h>

#define SOONEST_MS 20 /* between two looks */

struct hang_report {
    struct hang_report_options opt;
    uv_work_t work;
    struct rank_details *details; /* the thread's while `busy` */
    struct cdi_node_report report;
    int32_t stacks_of[RANK_DETAILS_STACKS_MAX];
    size_t n_stacks;
    bool busy, closing;
    bool waits; /* a long wait was reported */
    bool held;  /* the agent has stopped the workers */
    int64_t again_ms;
    int64_t looked_ms;     /* the last look */
    int64_t runs_since_ms; /* when the processes of this node last began to run again; 0: always */
};

/* A longer time between two looks shows that this process was stopped, most likely with its workers. */
#define STOPPED_MS (3 * HANG_REPORT_TICK_MS)

int64_t hang_report_longest_ms(const struct cdi_node_report *r)
{
    int64_t longest = 0;

    for (size_t i = 0; i < r->n_ranks; i++) {
        const struct cdi_rank_report *rank = &r->ranks[i];

        if ((rank->place == CDI_PLACE_IN || rank->place == CDI_PLACE_BEFORE || rank->place == CDI_PLACE_IN_REPLAY) &&
            rank->for_ms > longest)
            longest = rank->for_ms;
    }
    return longest;
}

/* Nobody is late for the time in which the job was suspended. */
static void take_ranks(struct hang_report *h, struct cdi_node_report *r, int64_t now_ms)
{
    if (h->opt.wait_ms > 0 && h->looked_ms > 0 && now_ms - h->looked_ms > STOPPED_MS)
        h->runs_since_ms = now_ms;
    h->looked_ms = now_ms;
    for (size_t i = 0; i < r->n_ranks; i++)
        if (r->ranks[i].for_ms > now_ms - h->runs_since_ms)
            r->ranks[i].for_ms = now_ms - h->runs_since_ms;
}

static void send_report(const struct hang_report *h, const struct cdi_node_report *r)
{
    json_t *json = cdi_node_report_encode(r);
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;

    if (text != NULL)
        (void)h->opt.facts->send(h->opt.facts->arg, CDI_BULK_REPORT, text, strlen(text));
    free(text);
    json_decref(json);
}

/* ---------------------------------------------------------------------------------------------------- by itself ----
 */

int64_t hang_report_look(struct hang_report *h, struct cdi_node_report *r, int64_t now_ms)
{
    int64_t longest_ms, left_ms;

    if (h == NULL || h->opt.wait_ms <= 0)
        return CDI_NEVER_MS;
    if (r == NULL) {
        h->waits = false;
        return now_ms + HANG_REPORT_TICK_MS;
    }
    take_ranks(h, r, now_ms);
    if (!h->busy)
        rank_details_note(h->details, r);
    longest_ms = hang_report_longest_ms(r);
    if (longest_ms >= h->opt.wait_ms ? !h->waits || now_ms >= h->again_ms : h->waits) {
        send_report(h, r);
        h->again_ms = now_ms + HANG_REPORT_AGAIN_MS;
    }
    h->waits = longest_ms >= h->opt.wait_ms;
    left_ms = h->opt.wait_ms - longest_ms;
    return now_ms + (h->waits || left_ms > HANG_REPORT_TICK_MS ? HANG_REPORT_TICK_MS
                     : left_ms > SOONEST_MS                    ? left_ms
                                                               : SOONEST_MS);
}

/* ------------------------------------------------------------------------------------------------------ answers ----
 */

static void free_report(struct hang_report *h)
{
    rank_details_destroy(h->details);
    free(h);
}

static void work_on_details(uv_work_t *work)
{
    struct hang_report *h = work->data;

    rank_details_look(h->details, &h->report, h->stacks_of, h->n_stacks);
}

static void on_details(uv_work_t *work, int status)
{
    struct hang_report *h = work->data;

    (void)status;
    h->busy = false;
    if (!h->closing)
        send_report(h, &h->report);
    cdi_node_report_release(&h->report);
    if (h->closing)
        free_report(h);
}

static void take_stacks_of(struct hang_report *h, const json_t *list)
{
    h->n_stacks = 0;
    for (size_t i = 0; i < json_array_size(list) && h->n_stacks < RANK_DETAILS_STACKS_MAX; i++) {
        json_int_t rank = json_integer_value(json_array_get(list, i));

        if (json_is_integer(json_array_get(list, i)) && rank >= 0 && rank <= INT32_MAX)
            h->stacks_of[h->n_stacks++] = (int32_t)rank;
    }
}

void hang_report_on_ask(struct hang_report *h, json_t *ask)
{
    json_int_t id = json_integer_value(json_object_get(ask, "id"));
    struct cdi_node_report r = {.asked = 0};

    if (id <= 0 || id > UINT32_MAX || h->opt.facts->ranks(h->opt.facts->arg, &r) != CDDP_OK)
        return;
    take_ranks(h, &r, cdi_now_ms());
    r.asked = (uint32_t)id;
    if (h->busy || h->held ||
        json_is_true(json_object_get(
            ask, "brief"))) { /* the pages alone: the processes may not answer, or this agent has stopped them */
        send_report(h, &r);
        cdi_node_report_release(&r);
        return;
    }
    take_stacks_of(h, json_object_get(ask, "stacks_of"));
    h->report = r;
    h->busy = uv_queue_work(h->opt.loop, &h->work, work_on_details, on_details) == 0;
    if (!h->busy) {
        send_report(h, &h->report);
        cdi_node_report_release(&h->report);
    }
}

/* --------------------------------------------------------------------------------------------- start and end ---- */

cddp_status hang_report_start(struct hang_report **out, const struct hang_report_options *opt)
{
    struct hang_report *h = calloc(1, sizeof *h);

    if (h == NULL || rank_details_create(&h->details, opt->n_ranks) != CDDP_OK) {
        free(h);
        return CDDP_E_NOMEM;
    }
    h->opt = *opt;
    h->work.data = h;
    *out = h;
    return CDDP_OK;
}

void hang_report_held(struct hang_report *h, bool held)
{
    if (h == NULL)
        return;
    h->held = held;
    h->runs_since_ms = cdi_now_ms();
}

void hang_report_close(struct hang_report *h)
{
    if (h == NULL)
        return;
    h->closing = true;
    if (h->busy)
        (void)uv_cancel((uv_req_t *)&h->work);
    else
        free_report(h);
}
