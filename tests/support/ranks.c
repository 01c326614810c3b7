/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include "common/clock.h"

#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

static cddp_status board_set(void *arg, const char *name, const char *text, struct cdi_error *err)
{
    struct ranks_board *b = arg;

    (void)err;
    for (size_t i = 0; i < sizeof b->entry / sizeof b->entry[0]; i++) {
        int none = 0;

        if (!atomic_compare_exchange_strong(&b->entry[i].ready, &none, 1))
            continue;
        (void)snprintf(b->entry[i].name, sizeof b->entry[i].name, "%s", name);
        (void)snprintf(b->entry[i].text, sizeof b->entry[i].text, "%s", text);
        atomic_store(&b->entry[i].ready, 2);
        return CDDP_OK;
    }
    return CDDP_E_LIMIT;
}

static cddp_status board_get(void *arg, const char *name, char *buf, size_t cap, int64_t timeout_ms,
                             struct cdi_error *err)
{
    struct ranks_board *b = arg;
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), timeout_ms);
    const struct timespec ms = {.tv_nsec = 1000000};

    for (;;) {
        for (size_t i = 0; i < sizeof b->entry / sizeof b->entry[0]; i++) {
            if (atomic_load(&b->entry[i].ready) != 2 || strcmp(b->entry[i].name, name) != 0)
                continue;
            (void)snprintf(buf, cap, "%s", b->entry[i].text);
            return CDDP_OK;
        }
        if (cdi_now_ms() >= deadline_ms)
            return cdi_fail(err, CDDP_E_TIMEOUT, "'%s' is not on the board", name);
        (void)nanosleep(&ms, NULL);
    }
}

struct cdi_meet rank_meet(struct rank *r)
{
    return (struct cdi_meet){.set = board_set, .get = board_get, .arg = r->board};
}

cddp_status rank_open(struct rank *r)
{
    const struct cdi_meet meet = rank_meet(r);
    struct cdi_address loopback;

    (void)cdi_net_parse("127.0.0.1:1", &loopback);
    return cdi_cpu_create_at(&r->b, &r->world, &meet, r->mapper.map != NULL ? &r->mapper : NULL, &loopback, &r->err);
}

void rank_close(struct rank *r)
{
    r->ops->destroy(r->b);
    r->b = NULL;
}

cddp_status rank_do(struct rank *r, const struct cdi_op *op)
{
    uint64_t ticket;
    cddp_status st = r->ops->enqueue(r->b, op, &ticket, &r->err);

    return st != CDDP_OK ? st : r->ops->join(r->b, ticket, &r->err);
}

int ranks_total(const struct ranks_layout *l)
{
    int n = 0;

    for (int i = 0; l->node_size[i] > 0; i++)
        n += l->node_size[i];
    return n;
}

static int rank_init(struct rank *r, int rank, const struct ranks_layout *l, struct ranks_board *board, const void *arg)
{
    int size = ranks_total(l), first = 0, node = 0, n_nodes = 0;

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
                                  .join_timeout_ms = 10000,
                                  .timeout_ms = 10000};
    return cdi_flight_attach(&r->world.flight, NULL, &r->err) == CDDP_OK ? 0 : 1;
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
                 const void *arg)
{
    struct rank r;
    int fds = count_fds(), rc;

    (void)alarm(timeout_s);
    rc = rank_init(&r, rank, l, board, arg);
    if (rc == 0)
        rc = fn(&r);
    rank_close(&r);
    cdi_flight_release(r.world.flight);
    if (rc == 0 && count_fds() != fds) {
        fprintf(stderr, "rank %d: descriptors leaked\n", rank);
        rc = 2;
    }
#ifdef RANKS_LSAN
    if (rc == 0 && __lsan_do_recoverable_leak_check())
        rc = 3;
#endif
    return rc;
}

int ranks_fork(int n, unsigned timeout_s, rank_fn fn, const void *arg, int *status)
{
    const struct ranks_layout l = {.node_size = {n}};

    return ranks_fork_on(&l, timeout_s, fn, arg, status);
}

int ranks_fork_on(const struct ranks_layout *l, unsigned timeout_s, rank_fn fn, const void *arg, int *status)
{
    int n = ranks_total(l);
    struct ranks_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[RANKS_MAX];
    int bad = 0;

    if (board == MAP_FAILED || n > RANKS_MAX)
        return n;
    (void)fflush(NULL);
    for (int i = 0; i < n; i++) {
        pid[i] = fork();
        if (pid[i] == 0)
            _exit(child(i, l, timeout_s, board, fn, arg));
    }
    for (int i = 0; i < n; i++) {
        int st = -1;

        if (pid[i] > 0)
            (void)waitpid(pid[i], &st, 0);
        bad += st != 0;
        if (status != NULL)
            status[i] = st;
    }
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

int ranks_threads(int n, rank_fn fn, const void *arg)
{
    const struct ranks_layout l = {.node_size = {n}};

    return ranks_threads_on(&l, fn, arg);
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
        a[i].rc = rank_init(&a[i].r, i, l, board, arg);
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
