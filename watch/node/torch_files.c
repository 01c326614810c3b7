/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/node/torch_files.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/visible.h"
#include "launcher/process/tasks.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ENVIRON_MAX (1u << 20)
#define LOOK_MS 50 /* between two looks whether a dump is there */

struct dump_file {
    char path[PATH_MAX];   /* as this process sees it; "": the worker has none */
    char name[TORCH_NOTE]; /* as the worker sees it, without its rank */
    struct timespec before;
    bool asked;
};

/* Reads a whole file of at most max bytes; a 0 follows them. NULL: it cannot be read, or is larger. */
static uint8_t *read_whole(int fd, size_t max, size_t *n)
{
    uint8_t *bytes = NULL;
    size_t cap = 0;
    ssize_t got;

    *n = 0;
    do {
        if (*n + 1 >= cap) {
            uint8_t *more;

            cap = cap == 0 ? 65536 : 2 * cap;
            more = *n > max ? NULL : realloc(bytes, cap);
            if (more == NULL) {
                free(bytes);
                return NULL;
            }
            bytes = more;
        }
        got = read(fd, bytes + *n, cap - 1 - *n);
        if (got > 0)
            *n += (size_t)got;
    } while (got > 0);
    bytes[*n] = 0;
    return bytes;
}

/* Finds NAME=value in the text of /proc/PID/environ; "": not set. */
static const char *find_variable(const char *environ_text, size_t n, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = environ_text; at < environ_text + n; at += strlen(at) + 1)
        if (strncmp(at, name, len) == 0 && at[len] == '=')
            return at + len + 1;
    return "";
}

/* Writes the path of PREFIX + rank + end, as the worker sees it. */
static void make_path(const struct torch_rank *r, const char *prefix, const char *end, char *path, size_t cap)
{
    int n = snprintf(path, cap, "/proc/%d/%s%s%d%s", r->pid, prefix[0] == '/' ? "root" : "cwd/", prefix, r->rank, end);

    if (prefix[0] == '\0' || n < 0 || (size_t)n >= cap)
        path[0] = '\0';
}

/* Writes into the pipe of a worker that has one. */
static bool ask(const char *path)
{
    CDI_AUTOCLOSE int fd = path[0] == '\0' ? -1 : open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat st;

    return fd >= 0 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) && write(fd, "1\n", 2) == 2;
}

static void begin_dump(const struct torch_rank *r, struct dump_file *f)
{
    char path[PATH_MAX];
    CDI_AUTOFREE uint8_t *text = NULL;
    CDI_AUTOCLOSE int fd = -1;
    const char *variables, *file, *pipe;
    struct stat st;
    size_t n;

    (void)snprintf(path, sizeof path, "/proc/%d/environ", r->pid);
    fd = tasks_are_stuck(r->pid) ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    text = fd < 0 ? NULL : read_whole(fd, ENVIRON_MAX, &n);
    if (text == NULL)
        return;
    variables = (const char *)text;
    file = find_variable(variables, n, "TORCH_FR_DUMP_TEMP_FILE");
    if (*file == '\0')
        file = find_variable(variables, n, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE");
    pipe = find_variable(variables, n, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE");
    if (*pipe == '\0')
        pipe = find_variable(variables, n, "TORCH_FR_DEBUG_INFO_PIPE_FILE");
    make_path(r, file, "", f->path, sizeof f->path);
    if (f->path[0] == '\0')
        return;
    (void)cdi_visible_line(f->name, sizeof f->name, file, strlen(file));
    if (stat(f->path, &st) == 0)
        f->before = st.st_mtim;
    make_path(r, pipe, ".pipe", path, sizeof path);
    f->asked = ask(path);
}

static bool is_before_ms(const struct timespec *t, int64_t ms)
{
    return t->tv_sec != ms / 1000 ? t->tv_sec < ms / 1000 : t->tv_nsec < ms % 1000 * 1000000;
}

/* Has the file changed since the worker was asked? Also true if the file server's clock is another one, or was set. */
static bool is_new(const struct dump_file *f, const struct stat *now)
{
    return f->asked && (now->st_mtim.tv_sec != f->before.tv_sec || now->st_mtim.tv_nsec != f->before.tv_nsec);
}

/*
 * Is a worker's dump there? One that this worker has not been asked for may be an earlier round's or job's: it is older
 * than the worker, since every round begins after the end of the one before. (The time of /proc/PID does not tell when
 * a worker began: it is when the kernel made the entry, perhaps for the second time.)
 */
static bool has_dump(const struct torch_rank *r, const struct dump_file *f)
{
    struct stat st;

    return f->path[0] != '\0' && stat(f->path, &st) == 0 && S_ISREG(st.st_mode) &&
           (is_new(f, &st) || !is_before_ms(&st.st_mtim, r->started_wall_ms + 1));
}

static bool waits_for_dump(const struct dump_file *f)
{
    struct stat st;

    return f->asked && (stat(f->path, &st) != 0 || !is_new(f, &st));
}

bool torch_files_find(struct torch_rank *v, size_t n, int64_t wait_ms, const atomic_bool *stopping)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};
    int64_t deadline_ms = cdi_now_ms() + wait_ms;
    CDI_AUTOFREE struct dump_file *files = calloc(n, sizeof *files);
    bool asked = false;

    if (files == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        begin_dump(&v[i], &files[i]);
        asked |= files[i].asked;
    }
    for (size_t i = 0; i < n && !atomic_load(stopping); i++) {
        while (waits_for_dump(&files[i]) && cdi_now_ms() < deadline_ms && !atomic_load(stopping))
            (void)nanosleep(&pause, NULL);
        if (has_dump(&v[i], &files[i]))
            memcpy(v[i].dump, files[i].name, sizeof v[i].dump);
    }
    return asked;
}
