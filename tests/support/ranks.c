/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include "common/clock.h"
#include "within.h"
#include "worker/backend/loader.h"
#include "worker/comm/placement.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RANKS_LSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define RANKS_LSAN 1
#endif
#ifdef RANKS_LSAN
#include <sanitizer/lsan_interface.h>
#endif

static void board_lock(struct ranks_board *b)
{
    if (pthread_mutex_lock(&b->lock) == EOWNERDEAD)
        (void)pthread_mutex_consistent(&b->lock);
}

/* Returns the index of a key, which it creates if needed. Locked. */
static int key_at(struct ranks_board *b, const char *name)
{
    for (int i = 0; i < (int)(sizeof b->key / sizeof b->key[0]); i++) {
        if (b->key[i].name[0] == '\0')
            (void)snprintf(b->key[i].name, sizeof b->key[i].name, "%s", name);
        if (strcmp(b->key[i].name, name) == 0)
            return i;
    }
    abort(); /* a test with more keys needs a larger board */
}

static cddp_status board_set(void *arg, const char *name, const void *value, size_t len, struct cdi_error *err)
{
    struct ranks_board *b = arg;
    int i;

    (void)err;
    board_lock(b);
    i = key_at(b, name);
    if (len > sizeof b->key[i].value)
        abort();
    memcpy(b->key[i].value, value, len);
    b->key[i].len = len;
    b->key[i].is_set = true;
    (void)pthread_mutex_unlock(&b->lock);
    return CDDP_OK;
}

static cddp_status board_get(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                             struct cdi_error *err)
{
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), timeout_ms);
    struct ranks_board *b = arg;
    const struct timespec ms = {.tv_nsec = 1000000};

    for (;;) {
        bool there;
        int i;

        board_lock(b);
        i = key_at(b, name);
        there = b->key[i].is_set && b->key[i].len <= cap;
        if (there) {
            memcpy(buf, b->key[i].value, b->key[i].len);
            *len = b->key[i].len;
        }
        (void)pthread_mutex_unlock(&b->lock);
        if (there)
            return CDDP_OK;
        if (cdi_now_ms() >= deadline_ms)
            return cdi_fail(err, CDDP_E_TIMEOUT, "'%s' is not on the board", name);
        (void)nanosleep(&ms, NULL);
    }
}

static cddp_status board_add(void *arg, const char *name, int64_t delta, int64_t *sum, struct cdi_error *err)
{
    struct ranks_board *b = arg;
    int64_t n;

    (void)err;
    board_lock(b);
    n = b->key[key_at(b, name)].number += delta;
    (void)pthread_mutex_unlock(&b->lock);
    if (sum != NULL)
        *sum = n;
    return CDDP_OK;
}

void ranks_board_init(struct ranks_board *b)
{
    pthread_mutexattr_t attr;

    (void)pthread_mutexattr_init(&attr);
    (void)pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    (void)pthread_mutex_init(&b->lock, &attr);
    (void)pthread_mutexattr_destroy(&attr);
}

struct cdi_oob rank_oob(struct rank *r)
{
    return (struct cdi_oob){.set = board_set, .get = board_get, .add = board_add, .arg = r->board};
}

cddp_status rank_open(struct rank *r)
{
    struct cdi_address loopback;
    bool is_there;
    cddp_status st;

    if (r->module != NULL) {
        st = cdi_module_open(r->module, &r->ops, &is_there, &r->err);
        if (st != CDDP_OK)
            return st;
        r->on_device = r->ops->on_device;
        r->world.keys = rank_oob(r);
        return r->ops->create(&r->b, &r->world, &r->err);
    }
    r->world.keys = rank_oob(r);
    (void)cdi_address_parse("127.0.0.1:1", &loopback);
    return cdi_cpu_create_at(&r->b, &r->world, r->mapper.map != NULL ? &r->mapper : NULL, &loopback, r->net, &r->err);
}

void rank_close(struct rank *r)
{
    r->ops->destroy(r->b);
    r->b = NULL;
    for (struct rank_part *p; (p = r->parts) != NULL;) {
        r->parts = p->next;
        cdi_flight_release(p->record);
        free(p);
    }
    r->n_parts = 0;
}

static cddp_status run(struct rank *r, const struct cdi_coll *op)
{
    uint64_t ticket;
    cddp_status st = r->ops->enqueue(r->b, op, &ticket, &r->err);

    return st != CDDP_OK ? st : r->ops->join(r->b, ticket, &r->err);
}

/* ----------------------------------------------------------------------------------------------------- parts ---- */

static const char *part_key(const struct rank_part *p, const char *name, char key[128])
{
    (void)snprintf(key, 128, "%s%.100s", p->prefix, name);
    return key;
}

static cddp_status part_set(void *arg, const char *name, const void *value, size_t len, struct cdi_error *err)
{
    const struct rank_part *p = arg;
    char key[128];

    return p->board.set(p->board.arg, part_key(p, name, key), value, len, err);
}

static cddp_status part_get(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                            struct cdi_error *err)
{
    const struct rank_part *p = arg;
    char key[128];

    return p->board.get(p->board.arg, part_key(p, name, key), buf, cap, len, timeout_ms, err);
}

static cddp_status part_add(void *arg, const char *name, int64_t delta, int64_t *sum, struct cdi_error *err)
{
    const struct rank_part *p = arg;
    char key[128];

    return p->board.add(p->board.arg, part_key(p, name, key), delta, sum, err);
}

/* Color, key and node of each rank. */
struct chosen {
    int32_t color, key, node;
};

/* The members know each other: they make the part as those of a group. */
static cddp_status make_part(struct rank *r, const struct chosen *all, const struct cdi_split *how, struct rank_part *p,
                             struct cdi_backend **out)
{
    struct cdi_world w = r->world;
    struct cdi_address loopback;
    int nodes[RANKS_MAX];

    w.size = 0;
    for (int i = 0, at; i < r->size; i++) {
        if (all[i].color != how->color)
            continue;
        for (at = w.size++; at > 0 && all[i].key < all[p->ranks[at - 1]].key; at--)
            p->ranks[at] = p->ranks[at - 1];
        p->ranks[at] = i;
    }
    for (int i = 0; i < w.size; i++) {
        nodes[i] = all[p->ranks[i]].node;
        w.rank = p->ranks[i] == r->rank ? i : w.rank;
    }
    cdi_node_layout_set_runs(&w, nodes);
    (void)snprintf(p->prefix, sizeof p->prefix, "part%d.%d/", r->n_parts, how->color);
    p->board = r->world.keys;
    w.keys = (struct cdi_oob){.set = part_set, .get = part_get, .add = part_add, .arg = p};
    w.ranks = p->ranks;
    w.record = p->record;
    cdi_split_adopt(&w, how);
    if (r->ops->group != NULL)
        return r->ops->group(r->b, &w, out, &r->err);
    (void)cdi_address_parse("127.0.0.1:1", &loopback);
    return cdi_cpu_create_at(out, &w, r->mapper.map != NULL ? &r->mapper : NULL, &loopback, r->net, &r->err);
}

cddp_status rank_split(struct rank *r, const struct cdi_split *how, struct cdi_backend **out)
{
    struct rank_part *p = calloc(1, sizeof *p);
    const struct chosen mine = {how->color, how->key, r->world.node_rank};
    struct chosen all[RANKS_MAX];
    const struct cdi_coll op = {.kind = CDI_ALL_GATHER,
                                .in = &mine,
                                .out = all,
                                .count = sizeof mine / sizeof(int32_t),
                                .dtype = CDDP_INT32,
                                .bucket = -1};
    struct cdi_split known = *how;
    cddp_status st = p != NULL ? cdi_flight_attach(&p->record, NULL, &r->err) : CDDP_E_NOMEM;

    *out = NULL;
    if (p == NULL)
        return st;
    p->next = r->parts;
    r->parts = p;
    r->n_parts++;
    known.record = p->record;
    if (st == CDDP_OK && r->ops->split != NULL)
        return r->ops->split(r->b, &known, out, &r->err);
    if (st == CDDP_OK)
        st = run(r, &op);
    return st == CDDP_OK && how->color >= 0 ? make_part(r, all, how, p, out) : st;
}

/* ---------------------------------------------------------------------------------------------------- memory ---- */

static void must(struct rank *r, cddp_status st)
{
    if (st == CDDP_OK)
        return;
    fprintf(stderr, "rank %d: memory: %s\n", r->rank, r->err.msg);
    _exit(1);
}

static cddp_status lend(struct rank *r, const void *p, size_t bytes, uint8_t **lent)
{
    void *there;
    cddp_status st = r->ops->alloc(r->b, bytes, &there, &r->err);

    if (st != CDDP_OK)
        return st;
    st = r->ops->copy(r->b, there, p, bytes, &r->err);
    if (st != CDDP_OK)
        r->ops->release(r->b, there);
    *lent = there;
    return st;
}

/* st: of the operation before it; only its results are copied. */
static cddp_status take_back(struct rank *r, cddp_status st, void *p, void *lent, size_t bytes)
{
    if (st == CDDP_OK && p != NULL)
        st = r->ops->copy(r->b, p, lent, bytes, &r->err);
    r->ops->release(r->b, lent);
    return st;
}

void *rank_lend(struct rank *r, const void *p, size_t bytes)
{
    uint8_t *lent;

    must(r, lend(r, p, bytes, &lent));
    return lent;
}

void rank_return(struct rank *r, void *p, void *lent, size_t bytes)
{
    must(r, take_back(r, CDDP_OK, p, lent, bytes));
}

/* Sets the bytes of the operation's buffers on this rank. */
static void extents(const struct rank *r, const struct cdi_coll *op, size_t *in, size_t *out)
{
    size_t size = cddp_dtype_size(op->dtype), one = op->count * size, all = one * (size_t)r->size;
    bool gathers = op->kind == CDI_ALL_GATHER || op->kind == CDI_ALL_TO_ALL;

    *in = op->kind == CDI_REDUCE_SCATTER || op->kind == CDI_ALL_TO_ALL ? all : one;
    *out = gathers ? all : one;
    if (op->kind == CDI_REDUCE && op->root != r->rank)
        *out = 0;
    if (op->kind == CDI_ALL_GATHERV) {
        *in = op->counts[r->rank] * size;
        *out = 0;
        for (int k = 0; k < r->size; k++)
            *out += op->counts[k] * size;
    }
}

/* The same on memory of the device; in place stays in place. A copy fails, too, once a rank has died. */
static cddp_status run_on_device(struct rank *r, const struct cdi_coll *op)
{
    struct cdi_coll there = *op;
    uint8_t *in = (uint8_t *)(uintptr_t)op->in, *out = op->out, *lent_in, *lent_out;
    size_t n_in, n_out;
    cddp_status st;

    extents(r, op, &n_in, &n_out);
    if (out == NULL)
        n_out = 0;
    if (in != NULL && out != NULL && in < out + n_out && out < in + n_in) { /* one block for both */
        uint8_t *first = in < out ? in : out, *end = in + n_in > out + n_out ? in + n_in : out + n_out;

        st = lend(r, first, (size_t)(end - first), &lent_in);
        if (st != CDDP_OK)
            return st;
        there.in = lent_in + (in - first);
        there.out = lent_in + (out - first);
        return take_back(r, run(r, &there), first, lent_in, (size_t)(end - first));
    }
    st = lend(r, in, in != NULL ? n_in : 0, &lent_in);
    if (st != CDDP_OK)
        return st;
    there.in = lent_in;
    if (out == NULL)
        return take_back(r, run(r, &there), in, lent_in, n_in);
    st = lend(r, out, n_out, &lent_out);
    if (st != CDDP_OK)
        return take_back(r, st, NULL, lent_in, n_in);
    there.out = lent_out;
    st = take_back(r, run(r, &there), in, lent_in, n_in);
    return take_back(r, st, out, lent_out, n_out);
}

cddp_status rank_do(struct rank *r, const struct cdi_coll *op)
{
    bool there = r->on_device && r->n_done++ % 2 == 0 && op->kind != CDI_BARRIER;

    return there ? run_on_device(r, op) : run(r, op);
}

int ranks_total(const struct ranks_layout *l)
{
    int n = 0;

    for (int i = 0; l->node_size[i] > 0; i++)
        n += l->node_size[i];
    return n;
}

bool ranks_ended_well(int bad, const int *status, int killed)
{
    return killed < 0 ? bad == 0 : bad == 1 && WIFSIGNALED(status[killed]) && WTERMSIG(status[killed]) == SIGKILL;
}

static int n_results, n_failed;

void ranks_result(bool ok, const char *what)
{
    n_failed += !ok;
    printf("%s %d - %s\n", ok ? "ok" : "not ok", ++n_results, what);
    (void)fflush(stdout);
}

int ranks_plan(void)
{
    printf("1..%d\n", n_results);
    return n_failed != 0;
}

void rank_nap(void)
{
    const struct timespec ms = {.tv_nsec = 1000000};

    (void)nanosleep(&ms, NULL);
}

void rank_sleep(int ms)
{
    int64_t until_ms = cdi_now_ms() + ms;

    while (cdi_now_ms() < until_ms)
        rank_nap();
}

void rank_await(const struct rank *r, int flag)
{
    while (atomic_load(&r->board->flag[flag]) == 0)
        rank_nap();
}

int rank_now(void)
{
    return (int)(cdi_now_ms() & 0x3fffffff);
}

void rank_have_me_killed(struct rank *r, int after_us)
{
    pid_t me = getpid();

    if (fork() != 0)
        return;
    (void)usleep((useconds_t)after_us);
    atomic_store(&r->board->flag[0], rank_now());
    (void)kill(me, SIGKILL);
    _exit(0);
}

int ranks_main(const struct ranks_layout *l, unsigned timeout_s, const struct ranks_test *test, size_t n, int argc,
               char **argv)
{
    for (size_t i = 0; i < n; i++) {
        int status[RANKS_MAX], bad;

        if (argc > 1 && strstr(test[i].what, argv[1]) == NULL)
            continue;
        bad = ranks_fork_on(l, timeout_s, test[i].fn, test[i].arg, status);
        ranks_result(ranks_ended_well(bad, status, test[i].killed), test[i].what);
    }
    return ranks_plan();
}

static int rank_init(struct rank *r, int rank, const struct ranks_layout *l, struct ranks_board *board, const void *arg,
                     const char *flight)
{
    int size = ranks_total(l), first = 0, node = 0, n_nodes = 0;
    char host[32];

    while (l->node_size[n_nodes] > 0)
        n_nodes++;
    for (; first + l->node_size[node] <= rank; node++)
        first += l->node_size[node];
    *r = (struct rank){.rank = rank, .size = size, .ops = &cdi_cpu_backend, .board = board, .arg = arg};
    r->world = (struct cdi_world){.rank = rank,
                                  .size = size,
                                  .local_rank = rank - first,
                                  .local_size = l->node_size[node],
                                  .node_rank = node,
                                  .n_nodes = n_nodes,
                                  .init_timeout_ms = cdi_within_ms(10000),
                                  .timeout_ms = cdi_within_ms(10000),
                                  .device_rank = rank,
                                  .device = -1};
    r->module = l->module;
    if (r->module != NULL && n_nodes > 1) { /* NCCL knows hosts by this name */
        (void)snprintf(host, sizeof host, "node-%d", node);
        (void)setenv("NCCL_HOSTID", host, 0);
    }
    return cdi_flight_attach(&r->world.flight, flight, &r->err) == CDDP_OK ? 0 : 1;
}

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (dir != NULL && readdir(dir) != NULL)
        n++;
    if (dir != NULL)
        (void)closedir(dir);
    return n;
}

static int child(int rank, const struct ranks_layout *l, unsigned timeout_s, struct ranks_board *board, rank_fn fn,
                 const void *arg, const char *flight)
{
    struct rank r;
    int fds = count_fds(), rc;

    (void)alarm((unsigned)(cdi_within_ms((int64_t)timeout_s * 1000) / 1000));
    rc = rank_init(&r, rank, l, board, arg, flight);
    if (rc == 0)
        rc = fn(&r);
    rank_close(&r);
    cdi_flight_release(r.world.flight);
    if (rc == 0 && l->module == NULL && count_fds() != fds) { /* CUDA keeps some */
        fprintf(stderr, "rank %d: descriptors leaked\n", rank);
        rc = 2;
    }
#ifdef RANKS_LSAN
    if (rc == 0 && __lsan_do_recoverable_leak_check())
        rc = 3;
#endif
    return rc;
}

int ranks_run_here(int rank, const struct ranks_layout *l, unsigned timeout_s, struct ranks_board *board, rank_fn fn)
{
    return child(rank, l, timeout_s, board, fn, NULL, NULL);
}

int ranks_fork(int n, unsigned timeout_s, rank_fn fn, const void *arg, int *status)
{
    const struct ranks_layout l = {.node_size = {n}};

    return ranks_fork_on(&l, timeout_s, fn, arg, status);
}

/* ------------------------------------------------------------------------------------------- the test as agent ---- */

struct agent {
    struct cdi_flight *page[RANKS_MAX];
    int fd[RANKS_MAX];
    char env[RANKS_MAX][160];
};

static int agent_init(struct agent *a, int n)
{
    memset(a, 0, sizeof *a);
    for (int i = 0; i < n; i++) {
        if (cdi_flight_create(&a->page[i], 1, &a->fd[i], NULL) != CDDP_OK)
            return 1;
        cdi_flight_env(a->page[i], a->fd[i], a->fd[i], a->env[i], sizeof a->env[i]);
    }
    return 0;
}

static void agent_release(struct agent *a, int n)
{
    for (int i = 0; i < n; i++) {
        if (a->page[i] != NULL)
            (void)close(a->fd[i]);
        cdi_flight_release(a->page[i]);
    }
}

static void agent_tell(struct agent *a, int n, int rank, pid_t pid, int status)
{
    const char *late = getenv("CDDP_TEST_WORD_MS"); /* how much later the agent reports a death */
    char text[128];

    if (late != NULL)
        (void)usleep((useconds_t)strtoul(late, NULL, 10) * 1000);
    (void)snprintf(text, sizeof text, "rank %d (pid %d) died of signal %d", rank, (int)pid, WTERMSIG(status));
    for (int i = 0; i < n; i++)
        if (i != rank)
            cdi_flight_tell_death(a->page[i], rank, text);
}

static int rank_of(const pid_t *pid, int n, pid_t who)
{
    for (int i = 0; i < n; i++)
        if (pid[i] == who)
            return i;
    return -1;
}

int ranks_fork_on(const struct ranks_layout *l, unsigned timeout_s, rank_fn fn, const void *arg, int *status)
{
    int n = ranks_total(l), left = n, bad = 0;
    struct ranks_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool has_agent = l->module != NULL;
    pid_t pid[RANKS_MAX];
    struct agent agent;

    if (board == MAP_FAILED || n > RANKS_MAX)
        return n;
    if (has_agent && agent_init(&agent, n) != 0)
        return n;
    ranks_board_init(board);
    (void)fflush(NULL);
    for (int i = 0; i < n; i++) {
        pid[i] = fork();
        if (pid[i] == 0)
            _exit(child(i, l, timeout_s, board, fn, arg, has_agent ? agent.env[i] : NULL));
        left -= pid[i] < 0;
        bad += pid[i] < 0;
    }
    while (left > 0) { /* in the order of their ends, so that a death is reported when it happens */
        int st = -1;
        pid_t who = waitpid(-1, &st, 0);
        int i = rank_of(pid, n, who);

        if (who < 0)
            break;
        if (i < 0)
            continue;
        left--;
        bad += st != 0;
        if (status != NULL)
            status[i] = st;
        if (has_agent && WIFSIGNALED(st))
            agent_tell(&agent, n, i, who, st);
    }
    if (has_agent)
        agent_release(&agent, n);
    (void)munmap(board, sizeof *board);
    return bad;
}

/* ------------------------------------------------------------------------------------------ ranks as threads ---- */

/* One mapping per segment, counted. */
struct maps {
    pthread_mutex_t lock;
    struct {
        ino_t ino;
        void *p;
        size_t bytes;
        int users;
    } map[64];
};

static void *shared_map(void *arg, int fd, size_t bytes)
{
    struct maps *m = arg;
    struct stat sb;
    void *p = NULL;
    int vacant = -1;

    (void)fstat(fd, &sb);
    (void)pthread_mutex_lock(&m->lock);
    for (int i = 0; i < 64 && p == NULL; i++) {
        if (m->map[i].users > 0 && m->map[i].ino == sb.st_ino) {
            m->map[i].users++;
            p = m->map[i].p;
        } else if (m->map[i].users == 0 && vacant < 0) {
            vacant = i;
        }
    }
    if (p == NULL && vacant >= 0) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        m->map[vacant].ino = sb.st_ino;
        m->map[vacant].p = p;
        m->map[vacant].bytes = bytes;
        m->map[vacant].users = 1;
    }
    (void)pthread_mutex_unlock(&m->lock);
    return p == MAP_FAILED ? NULL : p;
}

static void shared_unmap(void *arg, void *p, size_t bytes)
{
    struct maps *m = arg;

    (void)pthread_mutex_lock(&m->lock);
    for (int i = 0; i < 64; i++)
        if (m->map[i].users > 0 && m->map[i].p == p && --m->map[i].users == 0)
            (void)munmap(p, bytes);
    (void)pthread_mutex_unlock(&m->lock);
}

struct thread_arg {
    struct rank r;
    rank_fn fn;
    int rc;
};

static void *thread_main(void *p)
{
    struct thread_arg *a = p;

    a->rc = a->fn(&a->r);
    rank_close(&a->r);
    return NULL;
}

int ranks_threads_on(const struct ranks_layout *l, rank_fn fn, const void *arg)
{
    int n = ranks_total(l);
    struct ranks_board *board = calloc(1, sizeof *board);
    struct maps maps = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static struct thread_arg a[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    int bad = 0;

    if (board == NULL || n > RANKS_MAX)
        return n;
    for (int i = 0; i < n; i++) {
        a[i].rc = rank_init(&a[i].r, i, l, board, arg, NULL);
        a[i].r.mapper = (struct cdi_mapper){.map = shared_map, .unmap = shared_unmap, .arg = &maps};
        a[i].fn = fn;
        if (pthread_create(&thread[i], NULL, thread_main, &a[i]) != 0)
            abort();
    }
    for (int i = 0; i < n; i++) {
        (void)pthread_join(thread[i], NULL);
        cdi_flight_release(a[i].r.world.flight);
        bad += a[i].rc != 0;
    }
    free(board);
    return bad;
}
