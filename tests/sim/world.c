/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes, network, clocks, and a model of the server's session. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEVER INT64_MAX
#define NO_PEER UINT32_MAX
#define CALM_MS 900000 /* a job without faults must be over by then */
#define DOUBLED 0x100u

_Noreturn void sim_fail(struct sim *w, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(w->why, sizeof w->why, fmt, ap);
    va_end(ap);
    longjmp(w->broken, 1);
}

static void out_of_memory(void)
{
    fputs("sim: out of memory\n", stderr);
    exit(2);
}

/* ---------------------------------------------------------------------------------------------------- chance ---- */

static uint64_t rnd64(struct sim *w)
{
    uint64_t z = w->rng += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t rnd(struct sim *w, uint32_t below)
{
    return below == 0 ? 0 : (uint32_t)((rnd64(w) >> 32) * below >> 32);
}

static bool chance(struct sim *w, uint32_t one_in)
{
    return rnd(w, one_in) == 0;
}

/* Uniform in powers of two: small numbers are as likely as large ones. */
static uint32_t rnd_log(struct sim *w, uint32_t lo, uint32_t hi)
{
    uint32_t top = lo;

    while (top < hi && rnd(w, 8) != 0)
        top = top > hi / 2 ? hi : top * 2;
    return lo + rnd(w, top - lo + 1);
}

/* ----------------------------------------------------------------------------------------------------- queue ---- */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push(struct sim *w, struct sim_event ev)
{
    size_t i = w->n_heap++;

    if (w->n_heap > w->heap_cap) {
        w->heap_cap = w->heap_cap == 0 ? 1024 : w->heap_cap * 2;
        w->heap = realloc(w->heap, w->heap_cap * sizeof *w->heap);
        if (w->heap == NULL)
            out_of_memory();
    }
    ev.order = w->orders++;
    for (; i > 0 && before(&ev, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = ev;
}

static struct sim_event pop(struct sim *w)
{
    struct sim_event top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < w->n_heap) {
        if (child + 1 < w->n_heap && before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!before(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

static int64_t delay(struct sim *w)
{
    return 1 + rnd(w, (uint32_t)w->latency_ms) + (chance(w, 50) ? rnd(w, 20 * (uint32_t)w->latency_ms) : 0);
}

static void after(struct sim *w, int64_t ms, enum sim_kind kind, uint32_t who, uint32_t seq)
{
    push(w, (struct sim_event){.at = w->now + ms, .kind = kind, .who = who, .seq = seq});
}

/* Schedules the event again for the time when the node can process it. Returns false if it never will. */
static bool put_off(struct sim *w, const struct sim_event *ev, int64_t until)
{
    struct sim_event again = *ev;

    if (until == NEVER)
        return false;
    again.at = until > w->now ? until : w->now + 1;
    push(w, again);
    return true;
}

/* --------------------------------------------------------------------------------------------------- session ---- */

static struct sim_slot *slot_of(struct sim *w, uint32_t slot, uint32_t life)
{
    struct sim_slot *s = slot < w->n_slots ? &w->slots[slot] : NULL;

    return s != NULL && s->used && s->life == life ? s : NULL;
}

static uint32_t take_slot(struct sim *w, uint32_t machine, uint32_t conn)
{
    uint32_t i = w->free_slot, life;

    if (i != NO_PEER) {
        w->free_slot = w->slots[i].next_free;
    } else {
        if (w->n_slots == w->slots_cap) {
            w->slots_cap = w->slots_cap == 0 ? 64 : w->slots_cap * 2;
            w->slots = realloc(w->slots, w->slots_cap * sizeof *w->slots);
            if (w->slots == NULL)
                out_of_memory();
        }
        i = w->n_slots++;
        w->slots[i].life = 0;
    }
    life = w->slots[i].life + 1;
    w->slots[i] = (struct sim_slot){.used = true,
                                    .machine = machine,
                                    .conn = conn,
                                    .life = life,
                                    .heard_ms = w->now,
                                    .last_round = -1,
                                    .wanted = -1};
    return i;
}

static void free_slot(struct sim *w, uint32_t i)
{
    w->slots[i].used = false;
    w->slots[i].next_free = w->free_slot;
    w->free_slot = i;
}

/* Returns true if the server receives messages from this slot's node. */
static bool linked(const struct sim *w, const struct sim_slot *s)
{
    const struct sim_machine *m = &w->machines[s->machine];

    return m->on && m->up && m->conn == s->conn && !m->cut && !m->frozen;
}

static void tell(struct sim *w, uint32_t slot, enum sim_news news)
{
    struct sim_slot *s = &w->slots[slot];
    struct sim_machine *m;
    int64_t at = w->now + delay(w);

    if (s->away || s->machine == NO_PEER)
        return;
    m = &w->machines[s->machine];
    if (at <= m->last_heard)
        at = m->last_heard + 1;
    m->last_heard = at;
    push(w,
         (struct sim_event){
             .at = at, .kind = SIM_HEAR, .who = s->machine, .seq = s->conn, .what = news, .round = round_number(w->r)});
}

static void kill_workers(struct sim *w, uint32_t machine);
static void switch_off(struct sim *w, uint32_t machine);

static void carry_out(struct sim *w, const struct round_action *a)
{
    switch (a->kind) {
    case ROUND_DO_WELCOME:
        tell(w, a->peer, HEAR_WELCOME);
        return;
    case ROUND_DO_RESUME:
        tell(w, a->peer, HEAR_RESUMED);
        return;
    case ROUND_DO_WAITING:
        tell(w, a->peer, HEAR_WAITING);
        return;
    case ROUND_DO_ASSIGN:
        tell(w, a->peer, HEAR_ASSIGN);
        return;
    case ROUND_DO_ROUND_OVER:
        tell(w, a->peer, HEAR_OVER);
        return;
    case ROUND_DO_CLOSED:
        tell(w, a->peer, HEAR_CLOSED);
        return;
    case ROUND_DO_REFUSE:
        tell(w, a->peer, HEAR_REFUSED);
        free_slot(w, a->peer);
        return;
    case ROUND_DO_BYE:
        tell(w, a->peer, HEAR_CLOSED);
        free_slot(w, a->peer);
        return;
    case ROUND_DO_DROP: /* only a faulty client causes it; its connection closes at once */
        if (w->slots[a->peer].machine != NO_PEER)
            switch_off(w, w->slots[a->peer].machine);
        free_slot(w, a->peer);
        return;
    case ROUND_DO_END_KEYS:
        return;
    }
}

static void trace(const struct sim *w, const char *what, uint32_t machine, unsigned more)
{
    if (w->trace)
        fprintf(stderr, "%lld ms: machine %u %s %u\n", (long long)w->now, machine, what, more);
}

static const char *event_name(enum round_event_kind kind)
{
    static const char *const names[] = {"JOIN", "FAILED", "DONE", "STOPPED", "LEAVE",
                                        "LOST", "AWAY",   "BACK", "TICK",    "HANG"};

    return names[kind];
}

static void step(struct sim *w, struct round_event ev)
{
    const struct round_action *a;
    size_t n;

    ev.wall_ms = (int64_t)(rnd64(w) >> 20); /* the wall clock jumps */
    oracle_before(w, &ev);
    a = round_step(w->r, &ev, w->now, &n);
    w->n_events += ev.kind != ROUND_EV_TICK;
    if (w->trace && (ev.kind != ROUND_EV_TICK || n > 0))
        fprintf(stderr, "%lld ms: %s of peer %d, round %u -> %zu actions, state %d\n", (long long)w->now,
                event_name(ev.kind), (int)ev.peer, ev.round, n, (int)round_state(w->r));
    oracle_after(w, &ev, a, n);
    for (size_t i = 0; i < n; i++) {
        if (w->trace)
            fprintf(stderr, "    action %d for peer %d\n", (int)a[i].kind, (int)a[i].peer);
        carry_out(w, &a[i]);
    }
}

static void lose(struct sim *w, uint32_t slot, int64_t fence_ms)
{
    step(w, (struct round_event){.kind = ROUND_EV_LOST, .peer = slot, .text = "it is gone", .fence_ms = fence_ms});
    free_slot(w, slot);
}

/* ---------------------------------------------------------------------------------------------------- agents ---- */

static int64_t fence_at(const struct sim_machine *m)
{
    return m->alive_ms + (int64_t)(SIM_LEASE_MS * 2 / 3 / m->rate);
}

/* Cuts the connection in both directions. The last heartbeat was some time ago, and was delayed. */
static void lose_touch(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];
    struct sim_slot *s = slot_of(w, m->at, m->at_life);

    m->alive_ms = w->now - rnd(w, SIM_LEASE_MS / 15);
    m->contact++;
    push(w, (struct sim_event){.at = fence_at(m), .kind = SIM_FENCE, .who = i, .seq = m->contact});
    if (s == NULL)
        return;
    s->heard_ms = w->now - rnd(w, (uint32_t)(w->now - m->alive_ms) + 1);
    push(w, (struct sim_event){.at = (s->heard_ms + SIM_LEASE_MS + SIM_TICK_MS) / SIM_TICK_MS * SIM_TICK_MS,
                               .kind = SIM_LEASE,
                               .who = m->at,
                               .life = s->life});
}

static void regain_touch(struct sim *w, uint32_t i)
{
    struct sim_slot *s = slot_of(w, w->machines[i].at, w->machines[i].at_life);

    w->machines[i].contact++;
    w->machines[i].alive_ms = w->now;
    if (s != NULL)
        s->heard_ms = w->now;
}

static void count_workers(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];
    bool runs = m->on && m->workers && !m->frozen;

    if (runs != m->counted)
        oracle_running(w, i, runs);
    m->counted = runs;
}

static void kill_workers(struct sim *w, uint32_t i)
{
    w->machines[i].workers = false;
    w->machines[i].stopping = false;
    w->machines[i].stop_seq++;
    count_workers(w, i);
}

static void switch_off(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];

    kill_workers(w, i);
    m->on = m->up = false;
    m->contact++;
    m->attempt++;
    if (!w->calm && !chance(w, 4))
        after(w, 100 + rnd(w, 60000), SIM_START, i, m->attempt);
}

static void connect_later(struct sim *w, uint32_t i, int64_t ms)
{
    after(w, ms, SIM_CONNECT, i, ++w->machines[i].attempt);
}

static void give_up_connection(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];

    m->up = false;
    m->old_until = chance(w, 3) ? w->now + rnd(w, 3000) : w->now;
    connect_later(w, i, 250 + rnd(w, 250));
}

static void send(struct sim *w, uint32_t i, enum sim_kind kind, uint32_t what)
{
    struct sim_machine *m = &w->machines[i];
    int64_t at = w->now + delay(w);

    if (!m->up)
        return;
    if (at <= m->last_sent)
        at = m->last_sent + 1;
    m->last_sent = at;
    push(w, (struct sim_event){.at = at,
                               .kind = kind,
                               .who = m->at,
                               .seq = m->conn,
                               .life = m->at_life,
                               .what = what,
                               .round = (uint32_t)m->round});
}

static void say(struct sim *w, uint32_t i, enum sim_report what)
{
    struct sim_machine *m = &w->machines[i];

    if ((what == SAY_FAILED || what == SAY_NODE) && !m->failed && !m->node_failed)
        m->failed_ms = w->now;
    m->failed |= what == SAY_FAILED;
    m->node_failed |= what == SAY_NODE;
    m->done |= what == SAY_DONE;
    m->stopped |= what == SAY_STOPPED;
    m->left |= what == SAY_LEAVE;
    send(w, i, SIM_REPORT, what);
}

/* The process ends, and the kernel closes its connection. */
static void exit_agent(struct sim *w, uint32_t i)
{
    if (w->machines[i].up) {
        send(w, i, SIM_EOF, 0);
        if (!w->machines[i].cut)
            lose_touch(w, i);
    }
    switch_off(w, i);
}

static void stop_workers(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];

    if (m->stopping)
        return;
    m->stopping = true;
    after(w, chance(w, 5) ? rnd(w, SIM_STOP_MS) : rnd(w, 50), SIM_GONE, i, ++m->stop_seq);
}

static void end_agent(struct sim *w, uint32_t i)
{
    w->machines[i].ending = true;
    if (w->machines[i].workers)
        stop_workers(w, i);
    else
        exit_agent(w, i);
}

/* The agent is cut off and kills its workers. It reports this when it returns. */
static void fence(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];

    trace(w, "fences itself, workers:", i, m->workers);
    if (m->workers) {
        say(w, i, m->failed ? SAY_FAILED : SAY_NODE);
        m->stopped = true;
        kill_workers(w, i);
    }
    if (m->ending) {
        switch_off(w, i);
        return;
    }
    if (m->up)
        give_up_connection(w, i);
}

static void plan_work(struct sim *w, uint32_t i)
{
    uint32_t what = 0;
    int64_t ms;

    if (w->calm) {
        ms = rnd(w, 5000);
    } else if (chance(w, 20 + w->n_machines)) {
        ms = rnd(w, 3000);
        what = 1;
    } else if (w->seed % 4 == 0) {
        ms = 20000 + rnd(w, 3000);
    } else {
        return; /* until the next event */
    }
    push(w, (struct sim_event){
                .at = w->now + ms, .kind = SIM_WORK, .who = i, .what = what, .round = (uint32_t)w->machines[i].round});
}

static void begin_round(struct sim *w, uint32_t i, uint32_t round)
{
    struct sim_machine *m = &w->machines[i];

    m->round = round;
    m->failed = m->node_failed = m->done = m->stopped = false;
}

static void hear_assign(struct sim *w, uint32_t i, uint32_t round)
{
    struct sim_machine *m = &w->machines[i];

    if (m->ending || m->round >= round)
        return;
    SIM_CHECK(w, !m->workers, "node %u is assigned round %u while its workers of round %lld live", i, round,
              (long long)m->round);
    begin_round(w, i, round);
    m->assigned = round;
    m->workers = true;
    m->stopping = false;
    count_workers(w, i);
    plan_work(w, i);
}

static void hear_over(struct sim *w, uint32_t i, uint32_t round)
{
    struct sim_machine *m = &w->machines[i];

    if ((int64_t)round > m->round) { /* its ASSIGN was lost with a connection */
        begin_round(w, i, round);
        say(w, i, SAY_STOPPED);
    } else if (m->round == round && m->workers) {
        stop_workers(w, i);
    } else if (m->round == round && m->done && !m->stopped) {
        say(w, i, SAY_STOPPED);
    }
}

static void say_again(struct sim *w, uint32_t i)
{
    const struct sim_machine m = w->machines[i];

    if (m.failed || m.node_failed)
        say(w, i, m.failed ? SAY_FAILED : SAY_NODE);
    if (m.done)
        say(w, i, SAY_DONE);
    if (m.stopped)
        say(w, i, SAY_STOPPED);
    if (m.left)
        say(w, i, SAY_LEAVE);
}

static void hear_refused(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];
    bool had = m->assigned >= 0;

    kill_workers(w, i);
    if (!had || m->ending || chance(w, 4)) {
        switch_off(w, i);
        return;
    }
    m->assigned = -1; /* as a new one */
    m->failed = m->node_failed = m->done = m->stopped = false;
    m->up = false;
    m->round = -1;
    connect_later(w, i, 50 + rnd(w, 1000));
}

/* ---------------------------------------------------------------------------------------------------- events ---- */

static void on_hear(struct sim *w, const struct sim_event *ev)
{
    struct sim_machine *m = &w->machines[ev->who];

    if (!m->on || m->conn != ev->seq || !m->up)
        return;
    if (m->frozen || m->cut) {
        (void)put_off(w, ev, m->frozen ? m->thaw_at : m->cut_until);
        return;
    }
    trace(w, "hears", ev->who, ev->what);
    switch ((enum sim_news)ev->what) {
    case HEAR_WELCOME:
    case HEAR_WAITING:
        return;
    case HEAR_RESUMED:
        say_again(w, ev->who);
        return;
    case HEAR_ASSIGN:
        hear_assign(w, ev->who, ev->round);
        return;
    case HEAR_OVER:
        hear_over(w, ev->who, ev->round);
        return;
    case HEAR_CLOSED:
        end_agent(w, ev->who);
        return;
    case HEAR_REFUSED:
        hear_refused(w, ev->who);
        return;
    }
}

static struct cdi_msg_join join_of(struct sim *w, uint32_t i)
{
    const struct sim_machine *m = &w->machines[i];
    struct cdi_msg_join j = {.version = CDI_CONTROL_VERSION,
                             .pid = i,
                             .node_rank = m->wanted,
                             .n_procs = m->n_procs,
                             .min_nodes = w->opt.min_nodes,
                             .max_nodes = w->opt.max_nodes,
                             .spares = w->opt.spares,
                             .max_restarts = w->opt.max_restarts,
                             .restart_count = m->restarts,
                             .round = m->assigned};

    (void)snprintf(j.run_id, sizeof j.run_id, "job");
    (void)snprintf(j.host, sizeof j.host, "host%u", i);
    if (w->seed % 3 == 0)
        (void)snprintf(j.topology, sizeof j.topology, "switch%u", i % 5);
    return j;
}

static void arrive_anew(struct sim *w, uint32_t i)
{
    struct cdi_msg_join j = join_of(w, i);
    uint32_t slot = take_slot(w, i, w->machines[i].conn);

    w->machines[i].at = slot;
    w->machines[i].at_life = w->slots[slot].life;
    regain_touch(w, i);
    w->slots[slot].n_procs = j.n_procs;
    w->slots[slot].wanted = j.node_rank;
    w->slots[slot].restarts = j.restart_count;
    step(w, (struct round_event){.kind = ROUND_EV_JOIN, .peer = slot, .join = &j});
}

static void come_back(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];
    struct sim_slot *s = slot_of(w, m->at, m->at_life);
    struct cdi_msg_join j = join_of(w, i);
    int64_t at = w->now + delay(w);

    if (s == NULL) { /* the session no longer knows it */
        push(w, (struct sim_event){.at = at, .kind = SIM_HEAR, .who = i, .seq = m->conn, .what = HEAR_REFUSED});
        m->last_heard = at;
        return;
    }
    s->conn = m->conn;
    s->away = false;
    regain_touch(w, i);
    step(w, (struct round_event){.kind = ROUND_EV_BACK, .peer = m->at, .join = &j});
}

static void on_connect(struct sim *w, const struct sim_event *ev)
{
    struct sim_machine *m = &w->machines[ev->who];

    if (!m->on || ev->seq != m->attempt)
        return;
    if (m->frozen || m->cut) {
        if (!put_off(w, ev, m->frozen ? m->thaw_at : m->cut_until) && !m->workers)
            switch_off(w, ev->who); /* it gives up */
        return;
    }
    m->conn = ++w->conns;
    trace(w, "has connection", ev->who, m->conn);
    m->up = true;
    m->last_sent = m->last_heard = w->now;
    /* An agent whose WELCOME was lost joins again, and is recognized by its nonce. */
    if (m->assigned >= 0 || slot_of(w, m->at, m->at_life) != NULL)
        come_back(w, ev->who);
    else
        arrive_anew(w, ev->who);
}

/* A message in transit arrives unless its node abandoned the connection some time ago. */
static struct sim_slot *arrives(struct sim *w, const struct sim_event *ev)
{
    struct sim_slot *s = slot_of(w, ev->who, ev->life);
    const struct sim_machine *m;

    if (s == NULL || s->conn != ev->seq)
        return NULL;
    m = &w->machines[s->machine];
    if (m->cut) {
        (void)put_off(w, ev, m->cut_until);
        return NULL;
    }
    return m->on && (m->conn != ev->seq || !m->up) && w->now > m->old_until ? NULL : s;
}

static void give_report(struct sim *w, const struct sim_event *ev)
{
    struct cdi_failure f = {.kind = CDI_END_EXIT, .code = 1, .rank = -1, .local_rank = 0, .node_rank = -1};
    struct round_event re = {.peer = ev->who, .round = ev->round, .failure = &f, .text = "a signal"};

    if (w->slots[ev->who].machine != NO_PEER)
        f.time_ms = w->machines[w->slots[ev->who].machine].failed_ms;
    f.age_ms = w->now - f.time_ms;
    switch ((enum sim_report)(ev->what & ~DOUBLED)) {
    case SAY_NODE:
        f.kind = CDI_END_NODE;
        re.kind = ROUND_EV_FAILED;
        break;
    case SAY_FAILED:
        re.kind = ROUND_EV_FAILED;
        break;
    case SAY_DONE:
        re.kind = ROUND_EV_DONE;
        break;
    case SAY_STOPPED:
        re.kind = ROUND_EV_STOPPED;
        break;
    case SAY_LEAVE:
        re.kind = ROUND_EV_LEAVE;
        re.final = w->slots[ev->who].machine == 0; /* it hosts the server */
        break;
    }
    step(w, re);
}

static void on_report(struct sim *w, const struct sim_event *ev)
{
    struct sim_event again = *ev;

    if (ev->what & DOUBLED ? slot_of(w, ev->who, ev->life) == NULL : arrives(w, ev) == NULL)
        return;
    if (!(ev->what & DOUBLED) && ev->what != SAY_LEAVE && chance(w, 20)) {
        again.what |= DOUBLED;
        again.at = w->now + rnd(w, chance(w, 2) ? 50 : 40000);
        push(w, again);
    }
    give_report(w, ev);
}

static void on_eof(struct sim *w, const struct sim_event *ev)
{
    const struct sim_slot *s = slot_of(w, ev->who, ev->life);

    if (s == NULL || s->conn != ev->seq)
        return;
    if (w->machines[s->machine].cut)
        (void)put_off(w, ev, w->machines[s->machine].cut_until);
    else
        lose(w, ev->who, 0);
}

static void on_reset(struct sim *w, const struct sim_event *ev)
{
    struct sim_slot *s = slot_of(w, ev->who, ev->life);

    if (s == NULL || s->conn != ev->seq || s->away || linked(w, s))
        return;
    if (!round_may_return(w->r, ev->who)) {
        lose(w, ev->who, 0);
        return;
    }
    s->away = true;
    step(w, (struct round_event){.kind = ROUND_EV_AWAY, .peer = ev->who, .text = "reset"});
}

static void on_lease(struct sim *w, const struct sim_event *ev)
{
    struct sim_slot *s = slot_of(w, ev->who, ev->life);

    if (s != NULL && !linked(w, s) && w->now - s->heard_ms >= SIM_LEASE_MS)
        lose(w, ev->who, s->heard_ms + SIM_LEASE_MS * 2 / 5);
}

static void on_work(struct sim *w, const struct sim_event *ev)
{
    struct sim_machine *m = &w->machines[ev->who];

    if (!m->on || !m->workers || m->stopping || m->round != ev->round)
        return;
    if (m->frozen) {
        (void)put_off(w, ev, m->thaw_at);
    } else if (ev->what == 1) {
        say(w, ev->who, SAY_FAILED);
        stop_workers(w, ev->who);
    } else {
        kill_workers(w, ev->who);
        say(w, ev->who, SAY_DONE);
    }
}

static void on_gone(struct sim *w, const struct sim_event *ev)
{
    struct sim_machine *m = &w->machines[ev->who];

    if (!m->on || ev->seq != m->stop_seq)
        return;
    if (m->frozen) {
        (void)put_off(w, ev, m->thaw_at);
        return;
    }
    kill_workers(w, ev->who);
    if (m->ending)
        exit_agent(w, ev->who);
    else
        say(w, ev->who, SAY_STOPPED);
}

static void on_fence(struct sim *w, const struct sim_event *ev)
{
    struct sim_machine *m = &w->machines[ev->who];

    if (m->on && m->contact == ev->seq && !m->frozen)
        fence(w, ev->who);
}

static void on_start(struct sim *w, const struct sim_event *ev)
{
    struct sim_machine *m = &w->machines[ev->who];

    if (m->on || ev->seq != m->attempt || m->cut)
        return;
    *m = (struct sim_machine){.on = true,
                              .attempt = m->attempt,
                              .contact = m->contact + 1,
                              .stop_seq = m->stop_seq + 1,
                              .at = NO_PEER,
                              .round = -1,
                              .assigned = -1,
                              .restarts =
                                  chance(w, 4) ? rnd(w, (w->opt.max_restarts < 3 ? w->opt.max_restarts : 3) + 1) : 0,
                              .rate = 0.95 + rnd(w, 1000) / 10000.0,
                              .n_procs = m->n_procs,
                              .wanted = m->wanted,
                              .alive_ms = w->now};
    connect_later(w, ev->who, rnd(w, 100));
}

/* After a cut or a stop, an agent without a recent message opens another connection. */
static void go_on(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];
    const struct sim_slot *s = slot_of(w, m->at, m->at_life);

    if (!m->up)
        return;
    if (s != NULL && s->conn == m->conn && w->now - m->alive_ms < SIM_LEASE_MS / 5)
        regain_touch(w, i);
    else
        give_up_connection(w, i);
}

static void on_heal(struct sim *w, const struct sim_event *ev)
{
    struct sim_machine *m = &w->machines[ev->who];

    if (!m->cut)
        return;
    m->cut = false;
    if (m->on && !m->frozen)
        go_on(w, ev->who);
    else if (!m->on && !w->calm)
        after(w, rnd(w, 5000), SIM_START, ev->who, m->attempt);
}

static void on_thaw(struct sim *w, const struct sim_event *ev)
{
    struct sim_machine *m = &w->machines[ev->who];

    if (!m->frozen)
        return;
    m->frozen = false;
    if (!m->on)
        return;
    if (w->now >= fence_at(m)) { /* checked first */
        fence(w, ev->who);
        return;
    }
    count_workers(w, ev->who);
    if (!m->cut)
        go_on(w, ev->who);
    else
        push(w, (struct sim_event){.at = fence_at(m), .kind = SIM_FENCE, .who = ev->who, .seq = m->contact});
}

/* ---------------------------------------------------------------------------------------------------- faults ---- */

static void fault_cut(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];
    bool for_good = chance(w, 5);

    if (m->cut || m->frozen)
        return;
    m->cut = true;
    m->cut_until = for_good ? NEVER : w->now + 1 + rnd(w, 30000);
    lose_touch(w, i);
    if (!for_good)
        push(w, (struct sim_event){.at = m->cut_until, .kind = SIM_HEAL, .who = i});
}

static void fault_freeze(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];

    if (m->cut || m->frozen)
        return;
    m->frozen = true;
    m->thaw_at = w->now + 1 + rnd(w, 30000);
    lose_touch(w, i);
    count_workers(w, i);
    push(w, (struct sim_event){.at = m->thaw_at, .kind = SIM_THAW, .who = i});
}

static void fault_reset(struct sim *w, uint32_t i)
{
    const struct sim_machine *m = &w->machines[i];

    if (!m->up || m->cut || m->frozen)
        return;
    lose_touch(w, i);
    if (!chance(w, 5)) /* otherwise a firewall dropped the connection, and the server does not notice */
        push(w, (struct sim_event){
                    .at = w->now + rnd(w, 3000), .kind = SIM_RESET, .who = m->at, .seq = m->conn, .life = m->at_life});
    give_up_connection(w, i);
}

static void fault(struct sim *w, uint32_t i)
{
    struct sim_machine *m = &w->machines[i];
    uint32_t what = rnd(w, 100);

    trace(w, "has fault", i, what);
    if (!m->on) {
        if (!m->cut && chance(w, 2))
            after(w, 0, SIM_START, i, m->attempt);
    } else if (what < 20) {
        fault_reset(w, i);
    } else if (what < 40) {
        fault_cut(w, i);
    } else if (what < 55) {
        fault_freeze(w, i);
    } else if (what < 70 && !m->frozen) {
        exit_agent(w, i);                 /* killed; its guard kills the workers */
    } else if (what < 80 && !m->frozen) { /* the power fails */
        lose_touch(w, i);
        switch_off(w, i);
    } else if (what < 83 && !m->frozen && !m->ending) {
        say(w, i, SAY_LEAVE);
        end_agent(w, i);
    } else if (m->workers) {
        push(w, (struct sim_event){.at = w->now, .kind = SIM_WORK, .who = i, .what = 1, .round = (uint32_t)m->round});
    }
}

/* The workers stand still; the report may be of an earlier round. */
static void fault_hang(struct sim *w)
{
    struct cdi_failure f = {
        .kind = CDI_END_HANG, .rank = (int32_t)rnd(w, 4), .local_rank = -1, .node_rank = -1, .time_ms = w->now};
    uint32_t round = round_number(w->r);

    step(w, (struct round_event){.kind = ROUND_EV_HANG,
                                 .peer = NO_PEER,
                                 .round = chance(w, 5) && round > 0 ? round - 1 : round,
                                 .failure = &f,
                                 .final = chance(w, 20)});
}

static void on_fault(struct sim *w)
{
    uint32_t together = chance(w, 10) ? 1 + rnd(w, 1 + w->n_machines / 4) : 1; /* a switch fails with many nodes */

    for (; together > 0; together--)
        fault(w, rnd(w, w->n_machines));
    if (chance(w, 10))
        fault_hang(w);
    if (++w->n_faults < w->max_faults)
        after(w, rnd(w, 2 * (uint32_t)w->fault_every_ms), SIM_FAULT, 0, 0);
    else
        after(w, rnd(w, 20000), SIM_CALM, 0, 0);
}

/* JOINs that must be rejected, and reports without JOIN. */
static void on_stranger(struct sim *w)
{
    struct cdi_msg_join j = join_of(w, 0);
    uint32_t slot = take_slot(w, NO_PEER, 0);
    struct cdi_failure f = {.kind = CDI_END_EXIT};

    j.node_rank = -1;
    switch (rnd(w, 8)) {
    case 0:
        j.version++;
        break;
    case 1:
        j.max_nodes++;
        break;
    case 2:
        j.min_nodes++;
        break;
    case 3:
        j.run_id[0] = 'x';
        break;
    case 4:
        j.n_procs = 0;
        break;
    case 5:
        j.node_rank = INT32_MAX;
        break;
    case 6:
        j.spares++;
        break;
    default:
        step(w, (struct round_event){.kind = rnd(w, 2) == 0 ? ROUND_EV_FAILED : ROUND_EV_STOPPED,
                                     .peer = slot,
                                     .round = rnd(w, 4),
                                     .failure = &f});
        return;
    }
    step(w, (struct round_event){.kind = ROUND_EV_JOIN, .peer = slot, .join = &j});
    SIM_CHECK(w, !w->slots[slot].used, "a mismatching client was accepted");
}

static void on_calm(struct sim *w)
{
    w->calm = true;
    for (uint32_t i = 0; i < w->n_machines; i++)
        if (w->machines[i].on && w->machines[i].workers)
            plan_work(w, i);
}

static void on_tick(struct sim *w)
{
    step(w, (struct round_event){.kind = ROUND_EV_TICK, .peer = NO_PEER});
    oracle_tick(w);
    if (round_state(w->r) != ROUND_CLOSED)
        after(w, round_state(w->r) == ROUND_JOINING ? SIM_TICK_MS : 4 * SIM_TICK_MS, SIM_TICK, 0, 0);
}

static void dispatch(struct sim *w, const struct sim_event *ev)
{
    switch (ev->kind) {
    case SIM_START:
        on_start(w, ev);
        return;
    case SIM_CONNECT:
        on_connect(w, ev);
        return;
    case SIM_REPORT:
        on_report(w, ev);
        return;
    case SIM_EOF:
        on_eof(w, ev);
        return;
    case SIM_RESET:
        on_reset(w, ev);
        return;
    case SIM_HEAR:
        on_hear(w, ev);
        return;
    case SIM_WORK:
        on_work(w, ev);
        return;
    case SIM_GONE:
        on_gone(w, ev);
        return;
    case SIM_FENCE:
        on_fence(w, ev);
        return;
    case SIM_LEASE:
        on_lease(w, ev);
        return;
    case SIM_HEAL:
        on_heal(w, ev);
        return;
    case SIM_THAW:
        on_thaw(w, ev);
        return;
    case SIM_TICK:
        on_tick(w);
        return;
    case SIM_FAULT:
        on_fault(w);
        return;
    case SIM_UNKNOWN_CLIENT:
        on_stranger(w);
        if (!w->calm)
            after(w, rnd(w, 20000), SIM_UNKNOWN_CLIENT, 0, 0);
        return;
    case SIM_CALM:
        on_calm(w);
        return;
    }
}

/* ----------------------------------------------------------------------------------------------------- a job ---- */

static void draw_job(struct sim *w, uint32_t lo, uint32_t hi)
{
    struct round_options *o = &w->opt;
    uint32_t n = rnd_log(w, lo, hi);

    *o = (struct round_options){.run_id = "job", .max_nodes = n, .min_nodes = n};
    if (!chance(w, 3))
        o->min_nodes = 1 + (chance(w, 2) ? n / 2 : rnd(w, n));
    if (o->min_nodes > n)
        o->min_nodes = n;
    if (chance(w, 3))
        o->spares = rnd(w, 2 + n / 4);
    o->max_restarts = chance(w, 2) ? 1000 : rnd(w, 4);
    o->join_timeout_ms = 30000 + rnd(w, 60000);
    o->last_call_ms = rnd(w, 10000);
    o->regroup_ms = chance(w, 2) ? 0 : rnd(w, 10000);
    w->elastic = o->min_nodes < o->max_nodes || o->spares > 0;
    w->latency_ms = chance(w, 3) ? 200 : 5;
    w->max_faults = 3 + rnd(w, 40);
    w->fault_every_ms = chance(w, 3) ? 500 : 8000;
    w->n_machines = n + o->spares + rnd(w, 2 + n / 8);
}

static void make_machines(struct sim *w)
{
    uint32_t wishes = rnd(w, 3), spread = chance(w, 2) ? 1000 : 15000;

    w->machines = calloc(w->n_machines, sizeof *w->machines);
    if (w->machines == NULL)
        out_of_memory();
    for (uint32_t i = 0; i < w->n_machines; i++) {
        struct sim_machine *m = &w->machines[i];

        m->n_procs = chance(w, 2) ? 8 : 1 + rnd(w, 8);
        m->wanted = wishes == 0 || i >= w->opt.max_nodes || (wishes == 1 && chance(w, 2)) ? -1 : (int32_t)i;
        if (!chance(w, 10))
            after(w, rnd(w, spread), SIM_START, i, 0);
    }
}

static void run_job(struct sim *w)
{
    int64_t closed_at = NEVER, calm_at = NEVER;

    after(w, SIM_TICK_MS, SIM_TICK, 0, 0);
    after(w, rnd(w, 20000), SIM_FAULT, 0, 0);
    after(w, rnd(w, 20000), SIM_UNKNOWN_CLIENT, 0, 0);
    while (w->n_heap > 0) {
        struct sim_event ev = pop(w);

        w->now = ev.at;
        if (closed_at != NEVER && w->now > closed_at + 60000)
            return;
        dispatch(w, &ev);
        if (w->calm && calm_at == NEVER)
            calm_at = w->now;
        if (closed_at == NEVER && round_state(w->r) == ROUND_CLOSED)
            closed_at = w->now;
        SIM_CHECK(w, closed_at != NEVER || calm_at == NEVER || w->now < calm_at + CALM_MS,
                  "%d s after the last fault the job is not over", CALM_MS / 1000);
    }
    SIM_CHECK(w, closed_at != NEVER, "no event is left, but the job is not over");
}

/* Returns false if a guarantee was broken. */
static bool try_job(struct sim *w, uint32_t lo, uint32_t hi)
{
    if (setjmp(w->broken) != 0)
        return false;
    draw_job(w, lo, hi);
    if (round_create(&w->r, &w->opt, 0, NULL) != CDDP_OK)
        sim_fail(w, "round_create() failed");
    make_machines(w);
    run_job(w);
    return true;
}

bool sim_run(struct sim *w, uint64_t seed, uint32_t lo, uint32_t hi, bool trace)
{
    bool good;

    *w = (struct sim){.seed = seed,
                      .rng = seed * 0x2545f4914f6cdd1du,
                      .trace = trace,
                      .free_slot = NO_PEER,
                      .last_number = -1,
                      .paused_for = -1,
                      .enough_ms = -1,
                      .ready_ms = -1};
    good = try_job(w, lo, hi);
    round_destroy(w->r);
    free(w->machines);
    free(w->slots);
    free(w->heap);
    free(w->place);
    return good;
}
