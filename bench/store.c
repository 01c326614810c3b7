/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load on a store server: one thread, the same for our server and PyTorch's (c10d) and for Redis (resp). store.py
 * starts it. A client sends a batch of `depth` requests in one write and the next one when the last reply is there. The
 * server's time on a processor is that of all its threads, as the kernel counts it. libc only; prints one line of JSON.
 */
#include "load.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define N_KEYS 100
#define LIST_LEN 16 /* keys of a MULTI_GET, MULTI_SET, MGET, MSET */
#define VALUE "0123456789abcdef0123456789abcdef"
#define NONCE "EFGH" /* of a PING that is measured, or ends a batch that has no other answer */
#define END "ABCD"   /* of the PING whose answer tells that all answers before it are there */
#define ECHO_END "*2\r\n$4\r\nECHO\r\n$4\r\n" END "\r\n"

struct bytes {
    uint8_t *data;
    size_t len, cap;
};

/* One kind of request: `format` of each protocol (see build()); n_ops: how many operations it is. */
static const struct op {
    const char *name, *c10d, *resp;
    int n_ops;
    bool silent;        /* c10d does not answer: a PING ends the batch */
    bool lines;         /* resp: replies differ in length, so lines are counted */
    const char *answer; /* somewhere in the replies to the first batch; NULL: not looked for */
} ops[] = {
    {"get", "\x03k", "GET k", 1, false, false, VALUE},
    {"set", "\x01kv", "SET k v", 1, true, false, NULL},
    {"add", "\x04n1", "INCRBY n 1", 1, false, true, NULL},
    {"compare_set", "\x02kvv", NULL, 1, false, false, VALUE},
    {"check", "\x05#k", "EXISTS k", 1, false, false, NULL},
    {"wait for a key that is there", "\x06#k", NULL, 1, false, false, NULL},
    {"num_keys", "\x07", "DBSIZE", 1, false, true, NULL},
    {"set and delete", "\x01tv\x08t", "SET t v|DEL t", 2, false, false, NULL},
    {"append", "\x09p.", "APPEND p .", 1, true, true, NULL},
    {"multi_get of 16 keys", "\x0a@k", "MGET @k", 1, false, false, VALUE},
    {"multi_set of 16 keys", "\x0b@kv", "MSET @kv", 1, true, false, NULL},
    {"cancel_wait", "\x0c", NULL, 1, false, false, NULL},
    {"ping", "\x0dN", "PING", 1, false, false, NULL},
    {"queue push and pop", "\x0eqv\x0fq", "RPUSH q v|LPOP q", 2, false, true, VALUE},
    {"queue_len", "\x10q", "LLEN q", 1, false, false, NULL},
    {"barrier of 1",
     "\x12"
     "b1",
     NULL, 1, false, false, NULL},
    {"list_keys", "\x11", "KEYS *", 1, false, false, "key:"},
};
#define N_OPS (sizeof ops / sizeof ops[0])

struct client {
    int fd;
    size_t left;     /* bytes, or lines, of replies that are still to come */
    struct bytes in; /* of the first batch alone */
};

static struct sockaddr_in address;
static bool is_resp;

/* -------------------------------------------------------------------------------------------------- requests ---- */

static void put(struct bytes *b, const void *data, size_t len)
{
    if (data == NULL || len == 0)
        return;
    if (b->data == NULL || b->len + len > b->cap) {
        b->cap = (b->len + len) * 2;
        b->data = realloc(b->data, b->cap);
        if (b->data == NULL)
            die("realloc");
    }
    memcpy(b->data + b->len, data, len);
    b->len += len;
}

static void put_u64(struct bytes *b, uint64_t n)
{
    put(b, &n, sizeof n); /* little-endian, as the protocol */
}

static void put_string(struct bytes *b, const char *s)
{
    if (is_resp) {
        char head[32];

        put(b, head, (size_t)snprintf(head, sizeof head, "$%zu\r\n", strlen(s)));
        put(b, s, strlen(s));
        put(b, "\r\n", 2);
    } else {
        put_u64(b, strlen(s));
        put(b, s, strlen(s));
    }
}

/* What a letter of a format stands for; the seed tells which of the keys. Counters and queues are a client's own. */
static const char *name_of(char letter, unsigned seed, unsigned client)
{
    static char name[32];

    if (letter == 'v')
        return VALUE;
    if (letter == 'k')
        (void)snprintf(name, sizeof name, "/key:%03u", seed % N_KEYS);
    else if (letter == 't')
        (void)snprintf(name, sizeof name, "/%c:%03u:%u", letter, seed % N_KEYS, client);
    else
        (void)snprintf(name, sizeof name, "/%c:%u", letter, client);
    return name;
}

static void put_end(struct bytes *b)
{
    put(b, is_resp ? ECHO_END : "\x0d" END, is_resp ? sizeof ECHO_END - 1 : 5);
}

/* c10d: an operation's byte, then letters: a name or value; N the nonce; 1 a number; # a list of one; @ of LIST_LEN. */
static void build_c10d(struct bytes *b, const char *format, unsigned seed, unsigned client)
{
    for (; *format != '\0'; format++) {
        unsigned char c = (unsigned char)*format;

        if (c <= 0x12)
            put(b, &c, 1);
        else if (c == 'N')
            put(b, NONCE, 4);
        else if (c == '1' || c == '#')
            put_u64(b, 1);
        else if (c == '.')
            put_string(b, ".");
        else if (c != '@')
            put_string(b, name_of(*format, seed, client));
        if (c == '@') {
            put_u64(b, LIST_LEN);
            for (unsigned i = 0; i < LIST_LEN; i++)
                for (const char *of = format + 1; *of != '\0'; of++)
                    put_string(b, name_of(*of, seed + i, client));
            return;
        }
    }
}

/* resp: words; | between two commands; a word of one small letter stands for a name or value; @ for LIST_LEN of them.
 */
static void build_resp(struct bytes *b, const char *format, unsigned seed, unsigned client)
{
    char text[64], *commands, *words, *command, *word;

    (void)snprintf(text, sizeof text, "%s", format);
    for (command = strtok_r(text, "|", &commands); command != NULL; command = strtok_r(NULL, "|", &commands)) {
        struct bytes all = {0};
        unsigned n = 0;
        char head[32];

        for (word = strtok_r(command, " ", &words); word != NULL; word = strtok_r(NULL, " ", &words)) {
            bool letter = word[1] == '\0' && word[0] >= 'a';

            for (unsigned i = 0; word[0] == '@' && i < LIST_LEN; i++)
                for (const char *of = word + 1; *of != '\0'; of++, n++)
                    put_string(&all, name_of(*of, seed + i, client));
            if (word[0] != '@')
                put_string(&all, letter ? name_of(word[0], seed, client) : word), n++;
        }
        put(b, head, (size_t)snprintf(head, sizeof head, "*%u\r\n", n));
        put(b, all.data, all.len);
        free(all.data);
    }
}

static struct bytes build(const struct op *op, unsigned depth, unsigned client)
{
    struct bytes b = {0};

    for (unsigned i = 0; i < depth; i++) {
        if (is_resp)
            build_resp(&b, op->resp, i * 7 + client, client);
        else
            build_c10d(&b, op->c10d, i * 7 + client, client);
    }
    if (op->silent && !is_resp)
        put(&b, "\x0d" NONCE, 5);
    return b;
}

/* ----------------------------------------------------------------------------------------------- connections ---- */

static void send_all(int fd, const void *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, (const char *)data + at, len - at, MSG_NOSIGNAL);

        if (n < 0)
            die("send");
        at += (size_t)n;
    }
}

static int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!is_resp)
        send_all(fd, "\x00\xce\xf7\x85\x3c", 5);
    return fd;
}

static size_t receive(int fd, void *buf, size_t len)
{
    ssize_t n = recv(fd, buf, len, 0);

    if (n <= 0)
        die(n == 0 ? "the server closed the connection" : "recv");
    return (size_t)n;
}

static void begin_ask(int fd, const struct bytes *request)
{
    struct bytes b = {0};

    put(&b, request->data, request->len);
    put_end(&b);
    send_all(fd, b.data, b.len);
    free(b.data);
}

/* All that is answered to begin_ask(). */
static struct bytes end_ask(int fd)
{
    const char *end = is_resp ? "$4\r\n" END "\r\n" : END;
    struct bytes b = {0};
    uint8_t buf[65536];

    while (b.len < strlen(end) || memcmp(b.data + b.len - strlen(end), end, strlen(end)) != 0)
        put(&b, buf, receive(fd, buf, sizeof buf));
    b.len -= strlen(end);
    return b;
}

static struct bytes ask(int fd, const struct bytes *request)
{
    begin_ask(fd, request);
    return end_ask(fd);
}

static size_t count_lines(const uint8_t *data, size_t len)
{
    const uint8_t *at = data, *end = data + len;
    size_t n = 0;

    while (at < end && (at = memchr(at, '\n', (size_t)(end - at))) != NULL)
        n++, at++;
    return n;
}

static void fill(int fd)
{
    struct bytes b = {0};

    for (unsigned i = 0; i < N_KEYS; i++) {
        if (is_resp)
            build_resp(&b, "SET k v", i, 0);
        else
            build_c10d(&b, "\x01kv", i, 0);
    }
    free(ask(fd, &b).data);
    free(b.data);
}

/* ---------------------------------------------------------------------------------------------------- rates ---- */

/* Two batches whose replies are looked at: how long are they, and are they answers at all? */
static size_t rehearse(const struct op *op, struct client *c, const struct bytes *batch, bool lines)
{
    struct bytes first = ask(c->fd, batch), second = ask(c->fd, batch);
    size_t n = lines ? count_lines(second.data, second.len) : second.len;

    if (op->answer != NULL && memmem(first.data, first.len, op->answer, strlen(op->answer)) == NULL)
        die("the answer is not what was asked for");
    if (is_resp && (first.data[0] == '-' || n == 0))
        die("Redis says it is an error");
    free(first.data);
    free(second.data);
    return n;
}

static void rate(const struct op *op, const char *pid, unsigned n_clients, unsigned depth, double seconds)
{
    struct client *clients = calloc(n_clients, sizeof *clients);
    struct bytes *batches = calloc(n_clients, sizeof *batches);
    size_t *sizes = calloc(n_clients, sizeof *sizes);
    bool lines = is_resp && op->lines;
    double began = 0, cpu = 0, took;
    int ep = epoll_create1(EPOLL_CLOEXEC);
    static uint8_t buf[1 << 20];
    unsigned long n = 0, warm;

    if (clients == NULL || batches == NULL || sizes == NULL || ep < 0)
        die("setup");
    for (unsigned i = 0; i < n_clients; i++) {
        struct epoll_event ev = {.events = EPOLLIN, .data.u32 = i};

        clients[i].fd = dial();
        if (i == 0)
            fill(clients[i].fd);
        batches[i] = build(op, depth, i);
        sizes[i] = clients[i].left = rehearse(op, &clients[i], &batches[i], lines);
        if (epoll_ctl(ep, EPOLL_CTL_ADD, clients[i].fd, &ev) != 0)
            die("epoll_ctl");
    }
    for (unsigned i = 0; i < n_clients; i++)
        send_all(clients[i].fd, batches[i].data, batches[i].len);
    warm = 100; /* batches that do not count */
    for (;;) {
        struct epoll_event evs[64];
        int n_evs = 1;

        /* One client needs no epoll: it blocks in recv. */
        evs[0].data.u32 = 0;
        if (n_clients > 1)
            n_evs = epoll_wait(ep, evs, 64, -1);
        for (int i = 0; i < n_evs; i++) {
            unsigned which = evs[i].data.u32;
            struct client *c = &clients[which];
            size_t got = receive(c->fd, buf, sizeof buf);

            if (lines)
                got = count_lines(buf, got);
            if (got > c->left) {
                errno = EPROTO;
                die("more replies than requests");
            }
            c->left -= got;
            if (c->left > 0)
                continue;
            n++;
            c->left = sizes[which];
            send_all(c->fd, batches[which].data, batches[which].len);
        }
        if (warm > 0 && n >= warm) {
            warm = n = 0;
            cpu = cpu_ns(pid);
            began = now_s();
        } else if (warm == 0 && now_s() - began >= seconds) {
            break;
        }
    }
    took = now_s() - began;
    cpu = cpu_ns(pid) - cpu;
    n *= depth * (unsigned)op->n_ops;
    (void)printf("{\"per_s\": %.0f, \"cpu_us\": %.4f, \"busy\": %.3f, \"operations\": %lu}\n", (double)n / took,
                 cpu / 1e3 / (double)n, cpu / 1e9 / took, n);
}

/* -------------------------------------------------------------------------------------------------- wake-ups ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Waiters on one key; from the sending of the SET until the last of them has its answer. */
static double wake_once(int ep, const int *fds, unsigned n, int setter, unsigned repeat)
{
    struct bytes wait = {0}, set = {0};
    char key[32];
    uint8_t byte[16];
    double began;

    (void)snprintf(key, sizeof key, "/wake:%d:%u", (int)getpid(), repeat);
    put(&wait, "\x06", 1);
    put_u64(&wait, 1);
    put_string(&wait, key);
    for (unsigned i = 0; i < n; i++)
        begin_ask(fds[i], &wait);
    for (unsigned i = 0; i < n; i++) /* a WAIT is not answered yet, but the PING after it is: so it is known */
        free(end_ask(fds[i]).data);
    put(&set, "\x01", 1);
    put_string(&set, key);
    put_string(&set, VALUE);
    began = now_s();
    send_all(setter, set.data, set.len);
    for (unsigned left = n; left > 0;) {
        struct epoll_event evs[256];
        int n_evs = 1;

        evs[0].data.fd = fds[0];
        if (n > 1)
            n_evs = epoll_wait(ep, evs, 256, -1);
        for (int i = 0; i < n_evs; i++)
            left -= (unsigned)receive(evs[i].data.fd, byte, sizeof byte);
    }
    began = now_s() - began;
    free(wait.data);
    free(set.data);
    return began;
}

static void wake(const char *pid, unsigned n, unsigned repeats)
{
    int *fds = calloc(n, sizeof *fds), ep = epoll_create1(EPOLL_CLOEXEC), setter = dial();
    double *times = calloc(repeats, sizeof *times), cpu;

    if (fds == NULL || times == NULL || ep < 0)
        die("setup");
    for (unsigned i = 0; i < n; i++) {
        struct epoll_event ev = {.events = EPOLLIN};

        fds[i] = ev.data.fd = dial();
        if (epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &ev) != 0)
            die("epoll_ctl");
    }
    (void)wake_once(ep, fds, n, setter, repeats);
    cpu = cpu_ns(pid);
    for (unsigned i = 0; i < repeats; i++)
        times[i] = wake_once(ep, fds, n, setter, i);
    cpu = cpu_ns(pid) - cpu;
    qsort(times, repeats, sizeof times[0], ascending);
    (void)printf("{\"us\": %.2f, \"us_min\": %.2f, \"us_max\": %.2f, \"cpu_us_with_waits\": %.2f}\n",
                 times[repeats / 2] * 1e6, times[0] * 1e6, times[repeats - 1] * 1e6, cpu / 1e3 / repeats);
}

int main(int argc, char **argv)
{
    take_all_descriptors();
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (argc == 2 && strcmp(argv[1], "operations") == 0) {
        for (size_t i = 0; i < N_OPS; i++)
            (void)printf("%s%s\n", ops[i].name, ops[i].resp == NULL ? "" : "\tresp");
        return 0;
    }
    if (argc == 6 && strcmp(argv[1], "wake") == 0) {
        address.sin_port = htons((uint16_t)atoi(argv[2]));
        wake(argv[3], (unsigned)atoi(argv[4]), (unsigned)atoi(argv[5]));
        return 0;
    }
    if (argc == 8) {
        is_resp = strcmp(argv[1], "resp") == 0;
        address.sin_port = htons((uint16_t)atoi(argv[2]));
        for (size_t i = 0; i < N_OPS; i++)
            if (strcmp(ops[i].name, argv[4]) == 0 && (!is_resp || ops[i].resp != NULL)) {
                rate(&ops[i], argv[3], (unsigned)atoi(argv[5]), (unsigned)atoi(argv[6]), strtod(argv[7], NULL));
                return 0;
            }
    }
    (void)fprintf(stderr, "usage: store operations\n"
                          "       store c10d|resp PORT PID OPERATION CLIENTS DEPTH SECONDS\n"
                          "       store wake PORT PID WAITERS REPEATS\n");
    return 2;
}
