/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/run/run_watch.h"

#include "common/clock.h"
#include "common/log.h"
#include "launcher/agent/report.h"
#include "watch/run/progress_line.h"
#include "watch/run/report_page.h"

#include <cddp/version.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#define TICK_MS 500
#define NS_PER_MS 1000000
#define PAGE_MAX (16u * 1024 * 1024)
#define COLUMNS 80 /* if the terminal does not say */

struct run_watch {
    const struct plan *plan;
    struct logs *logs;
    char *target;              /* of the report; NULL: none */
    struct run_record *record; /* NULL: no report */
    bool line;                 /* --progress, on a terminal */
    struct progress_line progress;
    struct cdi_msg_assign assign;
    int64_t wall_ms, mono_ms; /* the start, by both clocks: a wall clock that is set does not move the record */
    bool assigned;
    /* At the end. */
    char why[512];
    int64_t ended_ms;
    int exit_status;
    uint32_t restarts;
};

static int64_t watch_wall_ms(const struct run_watch *w)
{
    return w->wall_ms + (cdi_now_ms() - w->mono_ms);
}

/* --------------------------------------------------------------------------------------------------- looking ---- */

/* Ranks without records of steps count them only. */
void run_watch_count(struct run_watch *w, const struct cdi_node_report *r)
{
    int64_t wall_ms = w != NULL ? watch_wall_ms(w) : 0;

    if (w == NULL || w->record == NULL)
        return;
    run_record_time(w->record, wall_ms);
    for (size_t i = 0; r != NULL && i < r->n_ranks; i++)
        if (r->ranks[i].n_steps == 0)
            run_record_count(w->record, (uint32_t)r->ranks[i].rank, r->ranks[i].step, wall_ms);
}

static unsigned terminal_columns(void)
{
    struct winsize size;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS;
}

static void draw_line(struct run_watch *w, const struct cdi_node_report *r, int64_t now_ms)
{
    struct progress_facts facts = progress_line_note(&w->progress, r, now_ms);
    char text[PROGRESS_LINE_MAX];

    facts.restarts = w->assign.restart_count;
    facts.elapsed_ms = now_ms - w->mono_ms;
    logs_draw_line(w->logs, progress_line_text(&facts, terminal_columns(), text));
}

int64_t run_watch_look(struct run_watch *w, const struct cdi_node_report *r, int64_t now_ms)
{
    if (w == NULL)
        return CDI_NEVER_MS;
    run_watch_count(w, r);
    if (w->line && r != NULL)
        draw_line(w, r, now_ms);
    return now_ms + TICK_MS;
}

/* ----------------------------------------------------------------------------------------------------- start ---- */

/* The reader of a pipe may write to the same terminal, and would not erase the line first. */
static bool may_draw(const struct plan *plan, const struct logs *logs)
{
    struct stat st;

    if (!plan->options->progress || !logs_has_terminal(logs) || plan->options->interactive >= 0)
        return false;
    if (fstat(STDOUT_FILENO, &st) != 0 || (!S_ISFIFO(st.st_mode) && !S_ISSOCK(st.st_mode)))
        return true;
    cdi_log(CDI_LOG_WARN, "RUN-WATCH-PIPE",
            "--progress draws no line: stdout is a pipe, whose reader may write to the same terminal");
    return false;
}

static void free_watch(struct run_watch *w)
{
    run_record_free(w->record);
    free(w->target);
    free(w);
}

static cddp_status start_report(struct run_watch *w, struct cdi_error *err)
{
    cddp_status st = report_page_check(w->plan->options->report, &w->target, err);

    /* Only node rank 0 writes: the path need not exist elsewhere. */
    if (st != CDDP_OK && w->plan->endpoint.node_rank > 0) {
        err->msg[0] = '\0';
        return CDDP_OK;
    }
    if (st != CDDP_OK)
        return st;
    w->record = run_record_new(w->wall_ms);
    if (w->record == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "--report: out of memory");
    return CDDP_OK;
}

cddp_status run_watch_start(struct run_watch **out, const struct plan *plan, struct logs *logs, struct cdi_error *err)
{
    bool line = may_draw(plan, logs);
    struct run_watch *w;
    cddp_status st;

    *out = NULL;
    if (plan->options->report == NULL && !line)
        return CDDP_OK;
    w = calloc(1, sizeof *w);
    if (w == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    w->plan = plan;
    w->logs = logs;
    w->line = line;
    w->wall_ms = cdi_wall_ms();
    w->mono_ms = cdi_now_ms();
    st = plan->options->report != NULL ? start_report(w, err) : CDDP_OK;
    if (st != CDDP_OK) {
        free_watch(w);
        return st;
    }
    *out = w;
    return CDDP_OK;
}

/* ---------------------------------------------------------------------------------------------------- events ---- */

void run_watch_round(struct run_watch *w, const struct cdi_msg_assign *assign)
{
    if (w == NULL)
        return;
    w->assign = *assign;
    w->assigned = true;
    w->progress = (struct progress_line){.n_points = 0};
    if (w->record == NULL)
        return;
    run_record_time(w->record, watch_wall_ms(w));
    run_record_round(w->record, assign, watch_wall_ms(w));
}

/* A failure without a text, such as a lost node, gets its headline. */
static void note_failure(struct run_watch *w, const struct cdi_failure *f)
{
    struct cdi_failure named = *f;

    if (named.text[0] == '\0')
        report_headline(f, named.text, sizeof named.text);
    run_record_failure(w->record, &named);
}

void run_watch_round_over(struct run_watch *w, const struct cdi_msg_round_over *over)
{
    char headline[1024];

    if (w == NULL || w->record == NULL)
        return;
    run_record_time(w->record, watch_wall_ms(w));
    if (over->failure.kind != CDI_END_NONE)
        report_headline(&over->failure, headline, sizeof headline);
    else
        (void)snprintf(headline, sizeof headline, "%s", over->text);
    note_failure(w, &over->failure);
    run_record_round_over(w->record, over->counts, headline, watch_wall_ms(w));
    run_record_event(w->record, over->counts ? "restart" : "change", headline, watch_wall_ms(w));
}

void run_watch_event(struct run_watch *w, const char *kind, const char *text)
{
    if (w == NULL || w->record == NULL)
        return;
    run_record_time(w->record, watch_wall_ms(w));
    run_record_event(w->record, kind, text, watch_wall_ms(w));
}

void run_watch_step(struct run_watch *w, int32_t rank, const struct cdi_flight_step *step, int64_t end_ns)
{
    int64_t wall_ms;

    if (w == NULL || w->record == NULL || rank < 0)
        return;
    wall_ms = watch_wall_ms(w);
    run_record_time(w->record, wall_ms);
    run_record_step(w->record, (uint32_t)rank, step, wall_ms - (cdi_now_ns() - end_ns) / NS_PER_MS);
}

/* ------------------------------------------------------------------------------------------------------- end ---- */

void run_watch_end(struct run_watch *w, const struct supervise *s, int exit_status)
{
    char headline[1024];

    if (w == NULL)
        return;
    if (w->line && s != NULL)
        logs_draw_line(w->logs, "");
    w->line = false;
    w->logs = NULL;
    w->ended_ms = watch_wall_ms(w);
    w->exit_status = exit_status;
    w->restarts = w->assign.restart_count;
    if (s != NULL && w->record != NULL) {
        bool failed = s->first.kind != CDI_END_NONE;

        report_headline(&s->first, headline, sizeof headline);
        (void)snprintf(w->why, sizeof w->why, "%s", failed ? "" : s->text);
        if (!failed && s->signal != 0)
            (void)snprintf(w->why, sizeof w->why, "ended by signal %d", s->signal);
        note_failure(w, &s->first);
        run_record_round_over(w->record, failed, failed ? headline : w->why, w->ended_ms);
    }
}

static void read_processor(char *to, size_t cap)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[512];

    to[0] = '\0';
    while (f != NULL && to[0] == '\0' && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            line[strcspn(line, "\n")] = '\0';
            (void)snprintf(to, cap, "%s", strchr(line, ':') + 2);
        }
    if (f != NULL)
        (void)fclose(f);
}

static const char *libc_text(char *to, size_t cap)
{
#ifdef __GLIBC__
    (void)snprintf(to, cap, "glibc %s", gnu_get_libc_version());
#else
    (void)snprintf(to, cap, "not glibc");
#endif
    return to;
}

static cddp_status write_report(const struct run_watch *w, struct cdi_error *err)
{
    char system[sizeof(struct utsname)], processor[256], libc[64], directory[PATH_MAX];
    struct report_page_about about = {.version = CDDP_VERSION,
                                      .run_id = w->plan->run_id,
                                      .directory = getcwd(directory, sizeof directory) != NULL ? directory : "",
                                      .command = w->plan->command,
                                      .why = w->why,
                                      .ended_ms = w->ended_ms,
                                      .exit_status = w->exit_status,
                                      .restarts = w->restarts,
                                      .n_local = w->plan->n_procs,
                                      .processor = processor,
                                      .system = system,
                                      .libc = libc_text(libc, sizeof libc)};
    struct machine *machine = calloc(1, sizeof *machine);
    struct utsname name;
    struct cdi_buf page;
    cddp_status st;

    if (machine == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "--report: out of memory");
    machine_read(machine, "", w->plan->options->cuda_visible_devices);
    about.machine = machine;
    about.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    read_processor(processor, sizeof processor);
    (void)uname(&name);
    (void)snprintf(system, sizeof system, "%s %s %s", name.sysname, name.release, name.machine);
    cdi_buf_init(&page, PAGE_MAX);
    st = report_page_make(w->record, &about, &page);
    if (st != CDDP_OK)
        st = cdi_fail(err, st, "cannot make the report '%.400s': %s", w->target,
                      st == CDDP_E_LIMIT ? "it would be larger than 16 MiB" : "out of memory");
    else
        st = report_page_write(w->target, &page, err);
    cdi_buf_release(&page);
    free(machine);
    return st;
}

cddp_status run_watch_finish(struct run_watch *w, struct cdi_error *err)
{
    bool first;
    cddp_status st = CDDP_OK;

    if (w == NULL)
        return CDDP_OK;
    first = w->assigned ? w->assign.node_rank == 0 : w->plan->endpoint.node_rank == 0 || w->plan->max_nodes == 1;
    if (w->record != NULL && w->ended_ms != 0 && first)
        st = write_report(w, err);
    free_watch(w);
    return st;
}
