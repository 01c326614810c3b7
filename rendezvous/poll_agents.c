/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/poll_agents.h"

#include "rendezvous/round/session.h"
#include "rendezvous/snapshot.h"
#include "rendezvous/view/view.h"

#define LOOK_MS 5          /* between two looks for answers */
#define SAMPLE_WAIT_MS 500 /* for the answers of agents, which nobody waits for */
#define SAMPLE_NODE_MS 10  /* of a node, from one sample to the next: a large job has fewer */

static void ask_job(struct conn_job *job, bool brief, int64_t now_ms)
{
    if (job->asked != 0 && !job->brief && now_ms - job->asked_ms < POLL_FRESH_MS)
        return;
    job->asked = view_ask(job->view, NULL, 0, brief);
    job->asked_ms = now_ms;
    job->brief = brief;
    job->sampled = false;
}

/* Have all agents of the job answered its last ASK, or is it `late`? Then its history gets a sample. */
static bool has_answered(const struct conn_ctx *ctx, struct conn_job *job, bool late, int64_t now_ms)
{
    if (job->asked == 0)
        return true;
    if (!late && view_unanswered(job->view, job->asked) > 0)
        return false;
    if (!job->sampled)
        snapshot_sample(ctx, job, now_ms);
    job->sampled = true;
    return true;
}

static bool all_have_answered(const struct conn_ctx *ctx, bool late, int64_t now_ms)
{
    bool all = true;

    for (struct conn_job *job = NULL; (job = conn_next_job(ctx, job)) != NULL;)
        all = has_answered(ctx, job, late, now_ms) && all;
    return all;
}

static bool is_ready(const struct conn *c, int64_t now_ms)
{
    bool late = now_ms >= c->ask_until_ms;
    bool answered =
        c->asks != NULL ? has_answered(c->ctx, c->asks, late, now_ms) : all_have_answered(c->ctx, late, now_ms);

    return late || (answered && now_ms >= c->ask_from_ms);
}

void poll_agents_answer(struct conn *c)
{
    void (*answer)(struct conn * c) = c->ask_answer;

    cdi_list_remove(&c->asking);
    answer(c);
}

static void on_look(uv_timer_t *timer)
{
    struct conn_ctx *ctx = timer->data;
    int64_t now_ms = conn_now_ms(ctx);
    struct cdi_list *node, *safe, ready;

    cdi_list_init(&ready);
    cdi_list_for_each (node, safe, &ctx->asking) {
        if (is_ready(cdi_list_of(node, struct conn, asking), now_ms)) {
            cdi_list_remove(node);
            cdi_list_push_back(&ready, node);
        }
    }
    while (!cdi_list_empty(&ready)) /* an answer may close other connections, or ask again */
        poll_agents_answer(cdi_list_of(ready.next, struct conn, asking));
    if (cdi_list_empty(&ctx->asking))
        (void)uv_timer_stop(timer);
    conn_flush_all(ctx);
}

void poll_agents_begin(struct conn *c, struct conn_job *job, int64_t from_ms, int64_t wait_ms,
                       void (*answer)(struct conn *c))
{
    struct conn_ctx *ctx = c->ctx;
    int64_t now_ms = conn_now_ms(ctx);

    if (poll_agents_waits(c))
        return;
    if (job != NULL)
        ask_job(job, false, now_ms);
    for (struct conn_job *each = NULL; job == NULL && (each = conn_next_job(ctx, each)) != NULL;)
        ask_job(each, false, now_ms);
    c->asks = job;
    c->ask_from_ms = from_ms;
    c->ask_until_ms = now_ms + wait_ms;
    c->ask_answer = answer;
    cdi_list_push_back(&ctx->asking, &c->asking);
    if (!uv_is_active((uv_handle_t *)&ctx->ask_timer))
        (void)uv_timer_start(&ctx->ask_timer, on_look, LOOK_MS, LOOK_MS);
}

void poll_agents_forget(struct conn_ctx *ctx, const struct conn_job *job)
{
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &ctx->asking) {
        struct conn *c = cdi_list_of(node, struct conn, asking);

        if (c->asks == job) {
            c->asks = NULL;
            c->ask_until_ms = 0;
        }
    }
}

void poll_agents_sample(struct conn_ctx *ctx, struct conn_job *job, bool ask)
{
    const struct round *round = session_round(job->session);
    int64_t now_ms = conn_now_ms(ctx), every_ms = history_every_ms(&job->history);

    if (round_state(round) != ROUND_RUNNING || !cdi_list_empty(&ctx->asking))
        return;
    if (every_ms < (int64_t)round_present(round) * SAMPLE_NODE_MS)
        every_ms = (int64_t)round_present(round) * SAMPLE_NODE_MS;
    if (job->asked != 0 && !job->sampled)
        (void)has_answered(ctx, job, now_ms - job->asked_ms >= SAMPLE_WAIT_MS, now_ms);
    else if (!ask)
        snapshot_sample(ctx, job, now_ms);
    else if (now_ms - job->asked_ms >= every_ms)
        ask_job(job, true, now_ms);
}
