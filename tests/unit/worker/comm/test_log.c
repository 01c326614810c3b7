/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/log.h"

#include "comm_ranks.h"
#include "float_words.h"
#include "hygiene.h"
#include "rdzv_child.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

CDI_SUITE(log);

static const struct cdi_log_head bare = {.name = "", .rank = -1};

static void expect_line(const char *text, const char *want)
{
    char line[CDI_LOG_LINE_BYTES];
    size_t n = cdi_log_line(line, &bare, text);

    cr_assert_str_eq(line, want);
    cr_assert_eq(n, strlen(want));
}

Test(log, names_communicator_rank_and_step)
{
    static const struct {
        struct cdi_log_head head;
        const char *want;
    } cases[] = {{{"", 3, true, 17}, "[rank 3, step 17] x"},
                 {{"", 0, false, 17}, "[rank 0] x"},
                 {{"actors", 12, true, UINT64_MAX}, "[actors, rank 12, step 18446744073709551615] x"}};
    char line[CDI_LOG_LINE_BYTES];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)cdi_log_line(line, &cases[i].head, "x");
        cr_assert_str_eq(line, cases[i].want);
    }
}

Test(log, escapes_control_characters_and_broken_utf8)
{
    expect_line("one\ntwo\tthree\r\n\n", "one\\ntwo\\tthree");
    expect_line("\x1b[31mred\x7f", "\\x1b[31mred\\x7f");
    expect_line("gr\xc3\xb6\xc3\x9f"
                "e \xe2\x82\xac",
                "gr\xc3\xb6\xc3\x9f"
                "e \xe2\x82\xac");
    expect_line("cut \xc3", "cut \\xc3");
    expect_line("\xc2\x9b"
                "2J",
                "\\xc2\\x9b"
                "2J"); /* a control character of Latin-1 */
    expect_line("\xed\xa0\x80", "\\xed\\xa0\\x80");
    expect_line("", "");
    expect_line("\n", "");
    expect_line(NULL, "(null)");
}

Test(log, cuts_long_text_at_whole_characters)
{
    static char text[3 * CDI_LOG_LINE_BYTES], line[CDI_LOG_LINE_BYTES];
    size_t n;

    for (size_t first = 0; first < 5; first++) {
        memset(text, 'x', sizeof text - 1);
        for (size_t k = first; k + 3 < sizeof text; k += 3)
            memcpy(text + k, "\xe2\x82\xac", 3);
        text[sizeof text - 3] = '\0';
        n = cdi_log_line(line, &bare, text);
        cr_assert(n < CDI_LOG_LINE_BYTES && n > CDI_LOG_LINE_BYTES - 10);
        cr_assert_eq(strlen(line), n);
        cr_assert_str_eq(line + n - 3, "...");
        cr_assert_eq((n - 3 - first) % 3, 0, "%zu: a character is cut", first);
    }
    memset(text, 1, CDI_LOG_LINE_BYTES);
    text[CDI_LOG_LINE_BYTES] = '\0';
    n = cdi_log_line(line, &bare, text);
    cr_assert_str_eq(line + n - 7, "\\x01...");
    memset(text, 'x', CDI_LOG_LINE_BYTES);
    text[CDI_LOG_LINE_BYTES - 4] = '\0'; /* the longest that fits */
    cr_assert_eq(cdi_log_line(line, &bare, text), CDI_LOG_LINE_BYTES - 4);
    cr_assert_str_eq(line, text);
}

/* ------------------------------------------------------------------------------------- through the interface ----- */

struct kept {
    int n;
    cddp_log_level level;
    char line[4096];
};

static void keep(void *arg, cddp_log_level level, const char *line)
{
    struct kept *k = arg;

    k->n++;
    k->level = level;
    (void)snprintf(k->line, sizeof k->line, "%s", line);
}

static float w[4];

static int train_and_log(int rank)
{
    const cddp_param p = {.size = sizeof p, .name = "w", .data = w, .count = 4, .dtype = CDDP_FLOAT32};
    struct kept k = {0};
    char want[64];
    cddp_comm *comm, *part;
    cddp_ddp *ddp;
    const cddp_split_options how = {.size = sizeof how, .name = "pair"};

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    cddp_set_log_callback(keep, &k);
    cddp_log(comm, CDDP_LOG_ALL, CDDP_LOG_INFO, "joined");
    (void)snprintf(want, sizeof want, "[rank %d] joined", rank);
    CHECK(k.n == 1 && k.level == CDDP_LOG_INFO && strcmp(k.line, want) == 0);
    cddp_log(comm, CDDP_LOG_ALL, CDDP_LOG_DEBUG, "too much");
    CHECK(k.n == 1);
    cddp_log(comm, CDDP_LOG_RANK0, CDDP_LOG_WARN, "once");
    CHECK(k.n == (rank == 0 ? 2 : 1));
    cddp_log(comm, CDDP_LOG_NODE, CDDP_LOG_WARN, "once per node"); /* all ranks are on one */
    CHECK(k.n == (rank == 0 ? 3 : 1));

    CHECK(cddp_ddp_create(&ddp, comm, &p, 1, NULL) == CDDP_OK);
    for (int step = 0; step < 3; step++) {
        cddp_logf(comm, CDDP_LOG_ALL, CDDP_LOG_ERROR, "loss %.2f of %s", 0.5 + step, "all");
        (void)snprintf(want, sizeof want, "[rank %d, step %d] loss %.2f of all", rank, step, 0.5 + step);
        CHECK(k.level == CDDP_LOG_ERROR && strcmp(k.line, want) == 0);
        CHECK(cddp_ddp_grad_ready(ddp, 0) == CDDP_OK);
        CHECK(cddp_ddp_wait(ddp) == CDDP_OK);
    }
    cddp_ddp_destroy(ddp);
    CHECK(cddp_comm_split(&part, comm, rank / 2, -rank, &how) == CDDP_OK);
    cddp_log(part, CDDP_LOG_ALL, CDDP_LOG_INFO, "split");
    (void)snprintf(want, sizeof want, "[pair, rank %d] split", 1 - rank % 2);
    CHECK(strcmp(k.line, want) == 0);
    cddp_log(NULL, CDDP_LOG_RANK0, CDDP_LOG_INFO, "nobody");
    CHECK(strcmp(k.line, "nobody") == 0);
    cddp_set_log_callback(NULL, NULL);
    CHECK(cddp_finalize(part) == CDDP_OK);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

/* A program with two models, one of which takes more steps: its lines count the steps of the first. */
static int train_two_models(int rank)
{
    static float other[4];
    const cddp_param p = {.size = sizeof p, .name = "w", .data = w, .count = 4, .dtype = CDDP_FLOAT32};
    const cddp_param q = {.size = sizeof q, .name = "o", .data = other, .count = 4, .dtype = CDDP_FLOAT32};
    struct kept k = {0};
    char want[64];
    cddp_comm *comm;
    cddp_ddp *first, *second;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    cddp_set_log_callback(keep, &k);
    CHECK(cddp_ddp_create(&first, comm, &p, 1, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&second, comm, &q, 1, NULL) == CDDP_OK);
    for (int step = 0; step < 6; step++) {
        CHECK(cddp_ddp_grad_ready(second, 0) == CDDP_OK && cddp_ddp_wait(second) == CDDP_OK);
        if (step % 3 == 2)
            CHECK(cddp_ddp_grad_ready(first, 0) == CDDP_OK && cddp_ddp_wait(first) == CDDP_OK);
        cddp_log(comm, CDDP_LOG_ALL, CDDP_LOG_INFO, "x");
        (void)snprintf(want, sizeof want, "[rank %d, step %d] x", rank, (step + 1) / 3);
        CHECK(strcmp(k.line, want) == 0);
    }
    cddp_ddp_destroy(first);
    cddp_log(comm, CDDP_LOG_ALL, CDDP_LOG_INFO, "x");
    CHECK(strcmp(k.line, want) == 0);
    CHECK(cddp_ddp_grad_ready(second, 0) == CDDP_OK && cddp_ddp_wait(second) == CDDP_OK);
    CHECK(cddp_ddp_create(&first, comm, &p, 1, NULL) == CDDP_OK);
    cddp_log(comm, CDDP_LOG_ALL, CDDP_LOG_INFO, "x");
    (void)snprintf(want, sizeof want, "[rank %d, step 7] x", rank);
    CHECK(strcmp(k.line, want) == 0);
    cddp_ddp_destroy(second);
    cddp_ddp_destroy(first);
    CHECK(cddp_ddp_create(&first, comm, &p, 1, NULL) == CDDP_OK);
    cddp_log(comm, CDDP_LOG_ALL, CDDP_LOG_INFO, "x");
    (void)snprintf(want, sizeof want, "[rank %d, step 0] x", rank);
    CHECK(strcmp(k.line, want) == 0);
    cddp_ddp_destroy(first);
    cddp_set_log_callback(NULL, NULL);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

static int world_of(int n, int (*body)(int rank))
{
    struct rdzv_child server;
    int bad;

    rdzv_child_start(&server);
    bad = run_ranks(server.port, n, n, body);
    rdzv_child_stop(&server);
    return bad;
}

Test(log, says_rank_and_step_of_each_scope)
{
    cr_assert_eq(world_of(4, train_and_log), 0);
}

Test(log, says_the_step_of_the_first_reducer)
{
    cr_assert_eq(world_of(2, train_two_models), 0);
}

/* Runs body in a separate process with this CDDP_LOG_LEVEL, and returns what it wrote to stderr. */
static void stderr_of(const char *level, void (*body)(void), char *buf, size_t cap)
{
    int fds[2], status = -1;
    size_t at = 0;
    ssize_t n;
    pid_t pid;

    cr_assert_eq(pipe(fds), 0);
    pid = fork();
    if (pid == 0) {
        clean_env();
        if (level != NULL)
            (void)setenv("CDDP_LOG_LEVEL", level, 1);
        else
            (void)unsetenv("CDDP_LOG_LEVEL");
        (void)dup2(fds[1], STDERR_FILENO);
        (void)close(fds[0]);
        (void)close(fds[1]);
        body();
        _exit(0);
    }
    (void)close(fds[1]);
    while (at + 1 < cap && (n = read(fds[0], buf + at, cap - 1 - at)) > 0)
        at += (size_t)n;
    buf[at] = '\0';
    (void)close(fds[0]);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
}

static void log_each_level(void)
{
    cddp_log(NULL, CDDP_LOG_ALL, CDDP_LOG_DEBUG, "d");
    cddp_log(NULL, CDDP_LOG_ALL, CDDP_LOG_INFO, "i");
    cddp_log(NULL, CDDP_LOG_ALL, CDDP_LOG_WARN, "w");
    cddp_log(NULL, CDDP_LOG_ALL, CDDP_LOG_ERROR, "e");
}

Test(log, drops_lines_below_level_of_environment)
{
    static const char *const cases[][2] = {{NULL, "i\nw\ne\n"}, {"debug", "d\ni\nw\ne\n"}, {"INFO", "i\nw\ne\n"},
                                           {"warn", "w\ne\n"},  {"warning", "w\ne\n"},     {"error", "e\n"},
                                           {"off", ""},         {"nonsense", "i\nw\ne\n"}};
    char got[256];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stderr_of(cases[i][0], log_each_level, got, sizeof got);
        cr_assert_str_eq(got, cases[i][1], "level %s", cases[i][0] != NULL ? cases[i][0] : "unset");
    }
}

static void join_with_level(void)
{
    cddp_comm *comm;

    if (cddp_init(&comm, NULL) != CDDP_OK)
        fprintf(stderr, "%s", cddp_last_error());
    else
        (void)!cddp_finalize(comm);
}

Test(log, init_rejects_level_that_does_not_exist)
{
    char got[256];

    stderr_of("loud", join_with_level, got, sizeof got);
    cr_assert_str_eq(got, "CDDP_LOG_LEVEL='loud' is not debug, info, warning, error or off");
    stderr_of("off", join_with_level, got, sizeof got);
    cr_assert_str_eq(got, "");
}

#define WRITERS 4
#define LINES 300

static void *write_lines(void *arg)
{
    char text[900];

    memset(text, (int)(intptr_t)arg, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < LINES; i++)
        cddp_log(NULL, CDDP_LOG_ALL, CDDP_LOG_INFO, text);
    return NULL;
}

static void write_from_threads(void)
{
    pthread_t t[WRITERS];

    for (intptr_t k = 0; k < WRITERS; k++)
        (void)pthread_create(&t[k], NULL, write_lines, (void *)('a' + k));
    for (int k = 0; k < WRITERS; k++)
        (void)pthread_join(t[k], NULL);
}

Test(log, writes_whole_lines)
{
    static char got[WRITERS * LINES * 900 + 1];
    size_t n = 0;

    stderr_of(NULL, write_from_threads, got, sizeof got);
    for (const char *line = got; *line != '\0'; line = strchr(line, '\n') + 1, n++)
        for (int k = 0; k < 899; k++)
            cr_assert_eq(line[k], line[0], "line %zu is mixed", n);
    cr_assert_eq(n, WRITERS * LINES);
}

static uint64_t state_there;

static void note_state(void *arg, cddp_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
    state_there = float_get();
}

Test(log, programs_function_has_callers_floating_point_state)
{
    uint64_t after;

    cddp_set_log_callback(note_state, NULL);
    float_set(float_words[FLOAT_UP]);
    cddp_log(NULL, CDDP_LOG_ALL, CDDP_LOG_ERROR, "text");
    after = float_get();
    float_set(float_words[FLOAT_DEFAULT]);
    cddp_set_log_callback(NULL, NULL);
    cr_assert(state_there == float_words[FLOAT_UP] && after == float_words[FLOAT_UP]);
}

/* The function and its argument always belong together. */
static struct kept first, second;

static void is_first(void *arg, cddp_log_level level, const char *line)
{
    (void)level;
    (void)line;
    if (arg != &first)
        abort();
}

static void is_second(void *arg, cddp_log_level level, const char *line)
{
    (void)level;
    (void)line;
    if (arg != &second)
        abort();
}

static void *swap(void *arg)
{
    for (int i = 0; i < 20000; i++)
        cddp_set_log_callback(i % 2 == 0 ? is_first : is_second, i % 2 == 0 ? &first : &second);
    return arg;
}

static void log_while_callback_changes(void)
{
    pthread_t t;

    cddp_set_log_callback(is_first, &first);
    (void)pthread_create(&t, NULL, swap, NULL);
    for (int i = 0; i < 20000; i++)
        cddp_log(NULL, CDDP_LOG_ALL, CDDP_LOG_INFO, "x");
    (void)pthread_join(t, NULL);
    cddp_set_log_callback(NULL, NULL);
}

Test(log, callback_gets_its_own_argument)
{
    char got[64];

    stderr_of(NULL, log_while_callback_changes, got, sizeof got);
    cr_assert_str_eq(got, "");
}
