/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/file.h"

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/crc64.h"
#include "common/map.h"
#include "worker/checkpoint/owned.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#define MAGIC "CDDPCKPT"
#define VERSION 2u
#define ALIGN 64u
#define FIXED_BYTES (8 + 4 + 4 + 8 + 8 + 8)
#define ENTRY_BYTES 26 /* without the name */
#define MAX_NAME 255u
#define MAX_OBJECT_NAME 200u /* capacity for a suffix */
#define MAX_OWN_NAME 240u    /* the same, for the number of a rank */
#define MAX_HEADER ((uint64_t)FIXED_BYTES + 8 + (uint64_t)CDI_CHECKPOINT_MAX_ITEMS * (ENTRY_BYTES + MAX_NAME))
#define PIECE ((size_t)1 << 20)
#define MOVED ((size_t)4 << 20) /* bytes that are copied from or to a device at once */
#define FILE_NAME "checkpoint-%020" PRIu64 ".cddp"
#define TMP_PREFIX ".checkpoint"

cddp_status cdi_checkpoint_check_item(const cddp_checkpoint_item *item, size_t i, struct cdi_error *err)
{
    bool is_memory = item->kind == CDDP_ITEM_MEMORY;
    size_t len = item->name == NULL ? 0 : strlen(item->name);
    size_t most = !is_memory ? MAX_OBJECT_NAME : (item->flags & CDDP_ITEM_PER_RANK) != 0 ? MAX_OWN_NAME : MAX_NAME;

    if (item->kind < CDDP_ITEM_MEMORY || item->kind > CDDP_ITEM_DDP)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: item %zu is of kind %d, which this libcddp does not know", i,
                        (int)item->kind);
    if (len == 0 || len > most)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: item %zu needs a name of 1 to %zu bytes", i, most);
    if (item->data == NULL && (item->bytes > 0 || !is_memory))
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: item '%s' has no %s", item->name,
                        is_memory ? "memory" : "object: its data is NULL");
    if ((item->flags & ~(uint32_t)CDDP_ITEM_PER_RANK) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: item '%s' has flags that this libcddp does not know",
                        item->name);
    if (!is_memory && (item->bytes != 0 || item->flags != 0))
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: item '%s' is not memory: its bytes and flags must be 0",
                        item->name);
    return CDDP_OK;
}

cddp_status cdi_checkpoint_check_items(const cddp_checkpoint_item *items, size_t n_items, struct cdi_error *err)
{
    struct cdi_map seen;
    cddp_status st = CDDP_OK;

    if (n_items == 0 || items == NULL || n_items > CDI_CHECKPOINT_MAX_ITEMS)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: %zu items; there must be 1 to %d", n_items,
                        CDI_CHECKPOINT_MAX_ITEMS);
    cdi_map_init(&seen);
    for (size_t i = 0; i < n_items && st == CDDP_OK; i++) {
        const char *name = items[i].name;
        size_t len = strlen(name);

        if (len > MAX_NAME)
            st = cdi_fail(err, CDDP_E_INVALID, "checkpoint: '%.200s...' is too long a name", name);
        else if (cdi_map_get(&seen, name, len) != NULL)
            st = cdi_fail(err, CDDP_E_INVALID, "checkpoint: two items are named '%s'", name);
        else if (cdi_map_add(&seen, name, len, (void *)(uintptr_t)name) != CDDP_OK)
            st = cdi_fail(err, CDDP_E_NOMEM, "checkpoint: no memory for %zu items", n_items);
    }
    cdi_map_release(&seen);
    return st;
}

static uint64_t file_align(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* --------------------------------------------------------------------------------------------------- writing ---- */

static uint64_t header_bytes_of(const cddp_checkpoint_item *items, size_t n_items)
{
    uint64_t bytes = FIXED_BYTES + 8;

    for (size_t i = 0; i < n_items; i++)
        bytes += ENTRY_BYTES + strlen(items[i].name);
    return bytes;
}

static uint64_t file_bytes_of(const cddp_checkpoint_item *items, size_t n_items)
{
    uint64_t bytes = file_align(header_bytes_of(items, n_items));

    for (size_t i = 0; i < n_items; i++)
        bytes = file_align(bytes + items[i].bytes);
    return bytes;
}

static cddp_status make_header(struct cdi_buf *b, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                               const uint64_t *crc)
{
    uint64_t header_bytes = header_bytes_of(items, n_items), offset;

    (void)cdi_buf_append(b, MAGIC, 8);
    (void)cdi_buf_put_u32(b, VERSION);
    (void)cdi_buf_put_u32(b, (uint32_t)n_items);
    (void)cdi_buf_put_u64(b, step);
    (void)cdi_buf_put_u64(b, header_bytes);
    (void)cdi_buf_put_u64(b, file_bytes_of(items, n_items));
    offset = file_align(header_bytes);
    for (size_t i = 0; i < n_items; i++) {
        (void)cdi_buf_put_u64(b, items[i].bytes);
        (void)cdi_buf_put_u64(b, offset);
        (void)cdi_buf_put_u64(b, crc[i]);
        (void)cdi_buf_put_u8(b, (uint8_t)items[i].kind);
        (void)cdi_buf_put_u8(b, (uint8_t)strlen(items[i].name));
        (void)cdi_buf_append(b, items[i].name, strlen(items[i].name));
        offset = file_align(offset + items[i].bytes);
    }
    (void)cdi_buf_put_u64(b, cdi_crc64(0, cdi_buf_data(b), b->len));
    /* Only memory can have run out above; then the length shows it. */
    return b->len == header_bytes ? CDDP_OK : CDDP_E_NOMEM;
}

static bool checkpoint_write_all(int fd, const void *data, size_t len, uint64_t offset)
{
    const uint8_t *p = data;

    while (len > 0) {
        ssize_t n = pwrite(fd, p, len > (size_t)1 << 30 ? (size_t)1 << 30 : len, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? ENOSPC : errno;
            return false;
        }
        p += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return true;
}

static cddp_status not_written(struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_SYSTEM, "%s", strerror(errno));
}

/* Writes an item on a device, piece by piece through host memory. */
static cddp_status write_away(int fd, const cddp_checkpoint_item *item, uint64_t offset, const struct cdi_mover *mover,
                              uint64_t *crc, struct cdi_error *err)
{
    size_t cap = item->bytes < MOVED ? item->bytes : MOVED;
    CDI_AUTOFREE uint8_t *piece = malloc(cap + 1);

    if (piece == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    for (size_t done = 0; done < item->bytes;) {
        size_t n = item->bytes - done < cap ? item->bytes - done : cap;
        cddp_status st = mover->ops->move(mover->b, piece, (const uint8_t *)item->data + done, n, err);

        if (st != CDDP_OK)
            return st;
        *crc = cdi_crc64(*crc, piece, n);
        if (!checkpoint_write_all(fd, piece, n, offset + done))
            return not_written(err);
        done += n;
    }
    return CDDP_OK;
}

/* Writes the items first, since the header has their checksums. */
static cddp_status checkpoint_write_file(int fd, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                                         const struct cdi_mover *mover, struct cdi_error *err)
{
    uint64_t offset = file_align(header_bytes_of(items, n_items));
    CDI_AUTOFREE uint64_t *crc = calloc(n_items + 1, sizeof *crc);
    struct cdi_buf header;
    cddp_status st = crc == NULL ? cdi_fail(err, CDDP_E_NOMEM, "out of memory") : CDDP_OK;

    for (size_t i = 0; i < n_items && st == CDDP_OK; i++) {
        if ((items[i].flags & CDI_ITEM_ON_DEVICE) != 0) {
            st = write_away(fd, &items[i], offset, mover, &crc[i], err);
        } else {
            crc[i] = cdi_crc64(0, items[i].data, items[i].bytes);
            st = checkpoint_write_all(fd, items[i].data, items[i].bytes, offset) ? CDDP_OK : not_written(err);
        }
        offset = file_align(offset + items[i].bytes);
    }
    if (st != CDDP_OK)
        return st;
    cdi_buf_init(&header, 0);
    if (make_header(&header, step, items, n_items, crc) != CDDP_OK)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    else if (!checkpoint_write_all(fd, cdi_buf_data(&header), header.len, 0) ||
             ftruncate(fd, (off_t)file_bytes_of(items, n_items)) != 0 || fsync(fd) != 0)
        st = not_written(err);
    cdi_buf_release(&header);
    return st;
}

static bool parse_file_name(const char *name, uint64_t *step)
{
    char again[64];

    if (sscanf(name, "checkpoint-%20" SCNu64, step) != 1)
        return false;
    (void)snprintf(again, sizeof again, FILE_NAME, *step);
    return strcmp(again, name) == 0;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* Lists the steps of all checkpoints in dir, newest first; *steps is malloc'ed. ENOENT is CDDP_E_NOT_FOUND. */
static cddp_status list_steps(const char *dir, uint64_t **steps, size_t *n, struct cdi_error *err)
{
    DIR *d = opendir(dir);
    CDI_AUTOFREE uint64_t *list = NULL;
    size_t used = 0, cap = 0;
    const struct dirent *e;
    int error;

    if (d == NULL && errno == ENOENT)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "no checkpoint: '%s' does not exist", dir);
    if (d == NULL)
        return cdi_fail_errno(err, errno, "checkpoint directory '%s'", dir);
    while (errno = 0, (e = readdir(d)) != NULL) {
        uint64_t step;

        if (!parse_file_name(e->d_name, &step))
            continue;
        if (used == cap) {
            uint64_t *more = reallocarray(list, cap = cap == 0 ? 16 : cap * 2, sizeof *list);

            if (more == NULL) {
                (void)closedir(d);
                return cdi_fail(err, CDDP_E_NOMEM, "checkpoint directory '%s': out of memory", dir);
            }
            list = more;
        }
        list[used++] = step;
    }
    error = errno; /* a directory that cannot be read to its end must not look like one without checkpoints */
    (void)closedir(d);
    if (error != 0)
        return cdi_fail_errno(err, error, "checkpoint directory '%s'", dir);
    if (used > 0)
        qsort(list, used, sizeof *list, newest_first);
    *n = used;
    *steps = cdi_steal(&list);
    return CDDP_OK;
}

/*
 * Removes, of those that this process knows, old checkpoints beyond `keep`, those of later steps, which belong to a
 * round that was abandoned, and damaged ones. A failure to remove one does not fail the save.
 */
static void remove_old(int dir_fd, const struct stat *dir, const char *path, uint64_t just_written, int keep)
{
    CDI_AUTOFREE uint64_t *steps = NULL;
    size_t n = 0;
    char name[64];
    int kept = 1;

    if (list_steps(path, &steps, &n, NULL) != CDDP_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        enum cdi_owned_kind kind = cdi_owned_find(dir, steps[i]);

        if (steps[i] == just_written || kind == CDI_OWNED_NOT || kind == CDI_OWNED_STRAY)
            continue;
        if (kind == CDI_OWNED_WHOLE && steps[i] < just_written && (keep < 0 || kept++ < keep))
            continue;
        (void)snprintf(name, sizeof name, FILE_NAME, steps[i]);
        if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
            (void)cdi_owned_put(dir, steps[i], CDI_OWNED_NOT);
    }
}

/*
 * Removes temporary files that killed runs have left. One that somebody writes is locked. Where a file system has no
 * locks, a file is left over that is a day older than `now`, a time of the same clock.
 */
static void remove_leftovers(int dir_fd, const char *path, time_t now)
{
    DIR *d = opendir(path);
    const struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        size_t len = strlen(e->d_name);
        CDI_AUTOCLOSE int fd = -1;
        struct stat sb;

        if (strncmp(e->d_name, TMP_PREFIX, sizeof TMP_PREFIX - 1) != 0 || len < 4 ||
            strcmp(e->d_name + len - 4, ".tmp") != 0)
            continue;
        fd = openat(dir_fd, e->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0 ? errno == ELOOP /* a link */
                   : fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) &&
                         (flock(fd, LOCK_EX | LOCK_NB) == 0 ||
                          (errno != EWOULDBLOCK && now - sb.st_mtime > (time_t)24 * 3600)))
            (void)unlinkat(dir_fd, e->d_name, 0);
    }
    if (d != NULL)
        (void)closedir(d);
}

/* Opens the directory; makes it first, so that its name stays when the machine stops. Returns -1 on failure. */
static int open_dir(const char *dir, struct stat *sb, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = -1, parent = -1;
    bool is_new = mkdir(dir, 0777) == 0;

    if (!is_new && errno != EEXIST) {
        (void)cdi_fail_errno(err, errno, "checkpoint: making the directory '%s'", dir);
        return -1;
    }
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && is_new)
        parent = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, sb) != 0 || (parent >= 0 && fsync(parent) != 0)) {
        (void)cdi_fail_errno(err, errno, "checkpoint directory '%s'", dir);
        return -1;
    }
    return cdi_steal_fd(&fd);
}

static cddp_status refuse(const char *dir, uint64_t step, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_EXISTS,
                    "checkpoint directory '%.400s': the checkpoint of step %" PRIu64
                    " there was neither loaded nor saved by this run, so nothing was saved or removed: load it first "
                    "(resume), save into another directory, or remove it",
                    dir, step);
}

/* Decides for a directory that this process has neither loaded from nor saved to. */
static cddp_status check_first(const char *dir, const struct stat *sb, const uint64_t *steps, size_t n,
                               struct cdi_error *err)
{
    struct cdi_checkpoint_file *f = NULL;
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_status st = n == 0 ? CDDP_E_NOT_FOUND : cdi_checkpoint_open(&f, dir, &info, err);

    cdi_checkpoint_close(f);
    if (st == CDDP_OK || st == CDDP_E_VERSION)
        return refuse(dir, st == CDDP_OK ? info.step : steps[0], err);
    if (st != CDDP_E_NOT_FOUND && st != CDDP_E_IO)
        return st;
    st = cdi_owned_begin(sb);
    for (size_t i = 0; i < n && st == CDDP_OK; i++)
        st = cdi_owned_put(sb, steps[i], CDI_OWNED_STRAY);
    return st == CDDP_OK ? CDDP_OK : cdi_fail(err, st, "checkpoint directory '%s': out of memory", dir);
}

cddp_status cdi_checkpoint_may_write(const char *dir, struct cdi_error *err)
{
    CDI_AUTOFREE uint64_t *steps = NULL;
    struct stat sb;
    size_t n = 0;
    cddp_status st = list_steps(dir, &steps, &n, err);

    if (st == CDDP_E_NOT_FOUND)
        return CDDP_OK;
    if (st == CDDP_OK && stat(dir, &sb) != 0)
        st = cdi_fail_errno(err, errno, "checkpoint directory '%s'", dir);
    if (st != CDDP_OK)
        return st;
    if (!cdi_owned_has(&sb))
        return check_first(dir, &sb, steps, n, err);
    for (size_t i = 0; i < n; i++)
        if (cdi_owned_find(&sb, steps[i]) == CDI_OWNED_NOT)
            return refuse(dir, steps[i], err);
    return CDDP_OK;
}

/*
 * Gives the file its name, which replaces only a file that this process knows: another job may have saved the same step
 * meanwhile. A file system over a network may report that the name exists, though it has just made it.
 */
static cddp_status publish(int dir_fd, const char *tmp, int fd, const char *name, bool may_replace,
                           struct cdi_error *err)
{
    struct stat sb;
    int rc = may_replace ? -1 : linkat(dir_fd, tmp, dir_fd, name, 0), error = rc == 0 ? 0 : errno;

    if (rc == 0 || (!may_replace && fstat(fd, &sb) == 0 && sb.st_nlink == 2)) {
        (void)unlinkat(dir_fd, tmp, 0);
    } else {
        if (!may_replace && error != EEXIST && faccessat(dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            error = EEXIST; /* a file system without links */
        if (!may_replace && error == EEXIST)
            return CDDP_E_EXISTS;
        if (renameat(dir_fd, tmp, dir_fd, name) != 0)
            return not_written(err);
    }
    return fsync(dir_fd) == 0 ? CDDP_OK : not_written(err);
}

cddp_status cdi_checkpoint_write(const char *dir, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                                 int keep, const struct cdi_mover *mover, struct cdi_error *err)
{
    CDI_AUTOCLOSE int dir_fd = -1, fd = -1;
    bool may_replace;
    char name[64], tmp[64];
    uint64_t random;
    struct stat sb, file;
    cddp_status st = cdi_checkpoint_may_write(dir, err);

    if (st != CDDP_OK)
        return st;
    dir_fd = open_dir(dir, &sb, err);
    if (dir_fd < 0)
        return err->status;
    may_replace = cdi_owned_find(&sb, step) != CDI_OWNED_NOT;
    (void)snprintf(name, sizeof name, FILE_NAME, step);
    /*
     * Creates a new file, and never opens an existing one: that might be a link to another file, which would be
     * overwritten, or another process's.
     */
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return cdi_fail_errno(err, errno, "checkpoint directory '%s': no random number", dir);
    (void)snprintf(tmp, sizeof tmp, TMP_PREFIX "-%016" PRIx64 ".tmp", random);
    fd = openat(dir_fd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &file) != 0) {
        st = not_written(err);
    } else {
        (void)flock(fd, LOCK_EX | LOCK_NB); /* it is in use, if anybody asks */
        remove_leftovers(dir_fd, dir, file.st_mtime);
        st = checkpoint_write_file(fd, step, items, n_items, mover, err);
    }
    /* Known before it is there: a file whose name may not last is this process's, too. */
    if (st == CDDP_OK && cdi_owned_put(&sb, step, CDI_OWNED_WHOLE) != CDDP_OK)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    if (st == CDDP_OK) {
        st = publish(dir_fd, tmp, fd, name, may_replace, err);
        if (st == CDDP_E_EXISTS)
            (void)cdi_owned_put(&sb, step, CDI_OWNED_NOT);
    }
    if (st != CDDP_OK)
        (void)unlinkat(dir_fd, tmp, 0);
    if (st == CDDP_E_EXISTS)
        return refuse(dir, step, err);
    if (st != CDDP_OK) {
        (void)cdi_error_wrap(err, "checkpoint '%s/%s' (%" PRIu64 " bytes) was not written", dir, name,
                             file_bytes_of(items, n_items));
        return st;
    }
    remove_old(dir_fd, &sb, dir, step, keep);
    return CDDP_OK;
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

struct entry {
    uint64_t bytes, offset, crc;
    const char *name; /* not terminated */
    uint8_t kind, name_len;
};

struct cdi_checkpoint_file {
    int fd;
    char path[PATH_MAX];
    uint64_t step;
    uint8_t *header;
    struct entry *entries;
    uint32_t n_entries;
    struct cdi_map by_name;
    uint64_t *steps; /* of all files in the directory, newest first */
    size_t n_steps;
    struct stat dir;
};

void cdi_checkpoint_close(struct cdi_checkpoint_file *f)
{
    if (f == NULL)
        return;
    if (f->fd >= 0)
        (void)close(f->fd);
    cdi_map_release(&f->by_name);
    free(f->header);
    free(f->entries);
    free(f->steps);
    free(f);
}

static bool checkpoint_read_all(int fd, void *data, size_t len, uint64_t offset)
{
    uint8_t *p = data;

    while (len > 0) {
        ssize_t n = pread(fd, p, len > (size_t)1 << 30 ? (size_t)1 << 30 : len, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return true;
}

static uint64_t get_uint(const uint8_t *p, int n_bytes)
{
    uint64_t v = 0;

    for (int i = n_bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

/*
 * Fills f->entries from a header with the right checksum. Returns false if its numbers are inconsistent nevertheless.
 */
static bool parse_entries(struct cdi_checkpoint_file *f, uint64_t header_bytes, uint64_t file_bytes)
{
    const uint8_t *p = f->header + FIXED_BYTES, *end = f->header + header_bytes - 8;

    for (uint32_t i = 0; i < f->n_entries; i++) {
        struct entry *e = &f->entries[i];

        if (end - p < ENTRY_BYTES)
            return false;
        *e = (struct entry){.bytes = get_uint(p, 8),
                            .offset = get_uint(p + 8, 8),
                            .crc = get_uint(p + 16, 8),
                            .name = (const char *)p + ENTRY_BYTES,
                            .kind = p[24],
                            .name_len = p[25]};
        if (end - p < ENTRY_BYTES + e->name_len || e->offset > file_bytes || e->bytes > file_bytes - e->offset)
            return false;
        p += ENTRY_BYTES + e->name_len;
    }
    return p == end;
}

/* Returns false without memory. Of two items of one name, which no save writes, the first one counts. */
static bool index_entries(struct cdi_checkpoint_file *f)
{
    bool ok = true;

    cdi_map_init(&f->by_name);
    for (uint32_t i = 0; i < f->n_entries && ok; i++) {
        struct entry *e = &f->entries[i];

        if (cdi_map_get(&f->by_name, e->name, e->name_len) == NULL)
            ok = cdi_map_add(&f->by_name, e->name, e->name_len, e) == CDDP_OK;
    }
    return ok;
}

/* A dangling link, a directory or a pipe may have the name of a checkpoint: CDDP_E_IO, as for a damaged file. */
static cddp_status checkpoint_open_file(struct cdi_checkpoint_file *f, struct stat *sb, struct cdi_error *err)
{
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would block */
    if (f->fd < 0 && (errno == ENOENT || errno == ELOOP || errno == ENXIO))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be opened: %s", f->path, strerror(errno));
    if (f->fd < 0 || fstat(f->fd, sb) != 0)
        return cdi_fail_errno(err, errno, "checkpoint '%s'", f->path);
    if (!S_ISREG(sb->st_mode))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is not a file", f->path);
    return CDDP_OK;
}

/* Opens and reads the file, and checks the header. Any wrong bytes are CDDP_E_IO: the file is damaged. */
static cddp_status read_header(struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    uint8_t fixed[FIXED_BYTES];
    struct stat sb;
    uint64_t header_bytes, file_bytes;

    if (checkpoint_open_file(f, &sb, err) != CDDP_OK)
        return err->status;
    if (sb.st_size < (off_t)sizeof fixed || !checkpoint_read_all(f->fd, fixed, sizeof fixed, 0) ||
        memcmp(fixed, MAGIC, 8) != 0)
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: it does not start like a checkpoint", f->path);
    f->n_entries = (uint32_t)get_uint(fixed + 12, 4);
    f->step = get_uint(fixed + 16, 8);
    header_bytes = get_uint(fixed + 24, 8);
    file_bytes = get_uint(fixed + 32, 8);
    if ((uint64_t)sb.st_size != file_bytes)
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: it has %" PRIu64 " of its %" PRIu64 " bytes",
                        f->path, (uint64_t)sb.st_size, file_bytes);
    /* Before memory is allocated: no more than for what the file really holds. */
    if (header_bytes < FIXED_BYTES + 8 || header_bytes > MAX_HEADER || header_bytes > file_bytes ||
        f->n_entries > (header_bytes - FIXED_BYTES - 8) / ENTRY_BYTES)
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its header is inconsistent", f->path);
    f->header = malloc(header_bytes);
    f->entries = calloc(f->n_entries + 1u, sizeof *f->entries);
    if (f->header == NULL || f->entries == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", f->path);
    if (!checkpoint_read_all(f->fd, f->header, header_bytes, 0) ||
        cdi_crc64(0, f->header, header_bytes - 8) != get_uint(f->header + header_bytes - 8, 8))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its header's checksum is wrong", f->path);
    /* Checked only now: a flipped bit does not mean another format. */
    if (get_uint(fixed + 8, 4) != VERSION)
        return cdi_fail(err, CDDP_E_VERSION, "checkpoint '%s' has format %" PRIu64 "; this libcddp reads format %u",
                        f->path, get_uint(fixed + 8, 4), VERSION);
    if (!parse_entries(f, header_bytes, file_bytes))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its header is inconsistent", f->path);
    if (!index_entries(f))
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", f->path);
    return CDDP_OK;
}

/* Compares every item's checksum before a byte of the caller's memory is changed. */
static cddp_status verify_items(const struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    CDI_AUTOFREE uint8_t *piece = malloc(PIECE);

    if (piece == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", f->path);
    for (uint32_t i = 0; i < f->n_entries; i++) {
        const struct entry *e = &f->entries[i];
        uint64_t crc = 0;

        for (uint64_t done = 0; done < e->bytes;) {
            size_t n = e->bytes - done < PIECE ? (size_t)(e->bytes - done) : PIECE;

            if (!checkpoint_read_all(f->fd, piece, n, e->offset + done))
                return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be read", f->path);
            crc = cdi_crc64(crc, piece, n);
            done += n;
        }
        if (crc != e->crc)
            return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: the checksum of item '%.*s' is wrong", f->path,
                            (int)e->name_len, e->name);
    }
    return CDDP_OK;
}

static const struct entry *find_entry(const struct cdi_checkpoint_file *f, const char *name)
{
    return cdi_map_get(&f->by_name, name, strlen(name));
}

/* Returns true if an item may be missing: that of a rank that did not exist at the save, but not rank 0's. */
static bool may_miss(const cddp_checkpoint_item *item)
{
    size_t len = strlen(item->name);

    return (item->flags & CDDP_ITEM_PER_RANK) != 0 && (len < 3 || strcmp(item->name + len - 3, "[0]") != 0);
}

/* Reads an item on a device, piece by piece through host memory. */
static cddp_status fill_away(const struct cdi_checkpoint_file *f, const cddp_checkpoint_item *item, uint64_t offset,
                             const struct cdi_mover *mover, struct cdi_error *err)
{
    size_t cap = item->bytes < MOVED ? item->bytes : MOVED;
    CDI_AUTOFREE uint8_t *piece = malloc(cap + 1);
    cddp_status st = piece == NULL ? cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", f->path) : CDDP_OK;

    for (size_t done = 0; done < item->bytes && st == CDDP_OK;) {
        size_t n = item->bytes - done < cap ? item->bytes - done : cap;

        if (!checkpoint_read_all(f->fd, piece, n, offset + done))
            return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be read", f->path);
        st = mover->ops->move(mover->b, (uint8_t *)item->data + done, piece, n, err);
        done += n;
    }
    return st;
}

bool cdi_checkpoint_find(const struct cdi_checkpoint_file *f, const char *name, size_t *bytes)
{
    const struct entry *e = find_entry(f, name);

    if (e != NULL && bytes != NULL)
        *bytes = e->bytes;
    return e != NULL;
}

const char *cdi_checkpoint_kind_name(unsigned kind)
{
    static const char *const names[] = {[CDDP_ITEM_MEMORY] = "memory",
                                        [CDDP_ITEM_SAMPLER] = "a sampler",
                                        [CDDP_ITEM_OPTIM] = "an optimizer",
                                        [CDDP_ITEM_DDP] = "a reducer"};

    return kind < sizeof names / sizeof names[0] ? names[kind] : "something unknown";
}

cddp_status cdi_checkpoint_fit(const struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items, size_t n_items,
                               uint8_t *present, struct cdi_error *err)
{
    for (size_t i = 0; i < n_items; i++) {
        const struct entry *e = find_entry(f, items[i].name);

        if (present != NULL)
            present[i] = e != NULL;
        if (e == NULL && may_miss(&items[i]))
            continue;
        if (e == NULL)
            return cdi_fail(err, CDDP_E_MISMATCH, "checkpoint '%s' holds no item '%s'", f->path, items[i].name);
        if (e->kind != items[i].kind)
            return cdi_fail(err, CDDP_E_MISMATCH, "checkpoint '%s': item '%s' is %s there and %s in this program",
                            f->path, items[i].name, cdi_checkpoint_kind_name(e->kind),
                            cdi_checkpoint_kind_name((unsigned)items[i].kind));
        if (e->bytes != items[i].bytes)
            return cdi_fail(err, CDDP_E_MISMATCH,
                            "checkpoint '%s': item '%s' has %" PRIu64 " bytes there and %zu in this program", f->path,
                            items[i].name, e->bytes, items[i].bytes);
    }
    return CDDP_OK;
}

cddp_status cdi_checkpoint_fill(const struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items, size_t n_items,
                                const struct cdi_mover *mover, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n_items && st == CDDP_OK; i++) {
        const struct entry *e = find_entry(f, items[i].name);

        if (e != NULL && (items[i].flags & CDI_ITEM_ON_DEVICE) != 0)
            st = fill_away(f, &items[i], e->offset, mover, err);
        else if (e != NULL && !checkpoint_read_all(f->fd, items[i].data, items[i].bytes, e->offset))
            st = cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be read", f->path);
    }
    return st;
}

/* The caller closes *out, also on failure. */
static cddp_status open_one(struct cdi_checkpoint_file **out, const char *dir, uint64_t step, struct cdi_error *err)
{
    struct cdi_checkpoint_file *f = calloc(1, sizeof *f);
    cddp_status st;

    *out = f;
    if (f == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint directory '%.200s': out of memory", dir);
    f->fd = -1;
    if (snprintf(f->path, sizeof f->path, "%s/" FILE_NAME, dir, step) >= (int)sizeof f->path)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint directory '%.200s...': the path is too long", dir);
    st = read_header(f, err);
    return st == CDDP_OK ? verify_items(f, err) : st;
}

cddp_status cdi_checkpoint_open(struct cdi_checkpoint_file **out, const char *dir, cddp_checkpoint_info *info,
                                struct cdi_error *err)
{
    CDI_AUTOFREE uint64_t *steps = NULL;
    cddp_checkpoint_info found = {.size = sizeof found};
    struct cdi_error why = {.status = CDDP_OK};
    size_t n = 0;
    cddp_status st = list_steps(dir, &steps, &n, err);

    *out = NULL;
    if (st != CDDP_OK)
        return st;
    if (n == 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "no checkpoint in '%s'", dir);
    for (size_t i = 0; i < n; i++) {
        st = open_one(out, dir, steps[i], &why);
        if (st == CDDP_OK && stat(dir, &(*out)->dir) != 0)
            st = cdi_fail_errno(&why, errno, "checkpoint directory '%s'", dir);
        if (st == CDDP_OK) {
            found.step = (*out)->step = steps[i];
            *info = found;
            (*out)->n_steps = n;
            (*out)->steps = cdi_steal(&steps);
            return CDDP_OK;
        }
        cdi_checkpoint_close(*out);
        *out = NULL;
        if (st != CDDP_E_IO)
            return cdi_fail_since(err, &why, "%s", why.msg);
        if (found.n_damaged++ == 0)
            (void)snprintf(found.damaged, sizeof found.damaged, "%.500s", why.msg);
    }
    return cdi_fail(err, CDDP_E_IO, "none of the %zu checkpoints in '%s' is whole; the newest: %s", n, dir,
                    found.damaged);
}

cddp_status cdi_checkpoint_own(const struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    cddp_status st = cdi_owned_begin(&f->dir);

    /* Those that are newer were passed over. */
    for (size_t i = f->n_steps; i-- > 0 && st == CDDP_OK;)
        st = cdi_owned_put(&f->dir, f->steps[i], f->steps[i] > f->step ? CDI_OWNED_DAMAGED : CDI_OWNED_WHOLE);
    return st == CDDP_OK ? CDDP_OK : cdi_fail(err, st, "checkpoint '%s': out of memory", f->path);
}
