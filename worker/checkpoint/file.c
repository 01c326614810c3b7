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
#include <sys/syscall.h>

#define EXCHANGE (1u << 1) /* RENAME_EXCHANGE of linux/fs.h */
#define MAGIC "CDDPCKPT"
#define VERSION 2u
#define VERSION_SHARD 3u /* each entry has a range, too */
#define ALIGN 64u
#define FIXED_BYTES (8 + 4 + 4 + 8 + 8 + 8)
#define ENTRY_BYTES 26 /* without the name */
#define RANGE_BYTES 16 /* more of them in a shard */
#define MAX_NAME 255u
#define MAX_OBJECT_NAME 200u /* capacity for a suffix */
#define MAX_OWN_NAME 240u    /* the same, for the number of a rank */
#define MAX_HEADER \
    ((uint64_t)FIXED_BYTES + 8 + (uint64_t)CDI_CHECKPOINT_MAX_ITEMS * (ENTRY_BYTES + RANGE_BYTES + MAX_NAME))
#define PIECE ((size_t)1 << 20)
#define MOVED ((size_t)4 << 20) /* bytes that are copied from or to a device at once */
#define FILE_NAME "checkpoint-%020" PRIu64 ".cddp"
#define TMP_PREFIX ".checkpoint"
#define INDEX "index"
#define SHARD "shard-%zu-of-%zu"

cddp_status cdi_checkpoint_check_item(const cddp_checkpoint_item *item, size_t i, struct cdi_error *err)
{
    bool is_memory = item->kind == CDDP_ITEM_MEMORY;
    size_t len = item->name == NULL ? 0 : strlen(item->name);
    size_t most = !is_memory ? MAX_OBJECT_NAME : (item->flags & CDDP_ITEM_PER_RANK) != 0 ? MAX_OWN_NAME : MAX_NAME;

    if (item->kind < CDDP_ITEM_MEMORY || item->kind > CDDP_ITEM_FSDP)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: item %zu is of kind %d, which this libcddp does not know", i,
                        (int)item->kind);
    if ((len == 0 && (item->kind != CDDP_ITEM_FSDP || item->name == NULL)) || len > most)
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

cddp_status cdi_checkpoint_check_items(const cddp_checkpoint_item *items, size_t n_items, bool in_pieces,
                                       struct cdi_error *err)
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
        else if (in_pieces && cdi_map_get(&seen, name, len) == name)
            continue;
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

/* What a file is to hold. */
struct content {
    uint64_t step;
    const cddp_checkpoint_item *items;
    const struct cdi_range *ranges; /* by item; NULL: they are whole */
    size_t n;
};

static uint64_t header_bytes_of(const struct content *c)
{
    uint64_t bytes = FIXED_BYTES + 8;

    for (size_t i = 0; i < c->n; i++)
        bytes += ENTRY_BYTES + (c->ranges != NULL ? RANGE_BYTES : 0) + strlen(c->items[i].name);
    return bytes;
}

static uint64_t file_bytes_of(const struct content *c)
{
    uint64_t bytes = file_align(header_bytes_of(c));

    for (size_t i = 0; i < c->n; i++)
        bytes = file_align(bytes + c->items[i].bytes);
    return bytes;
}

static cddp_status make_header(struct cdi_buf *b, const struct content *c, const uint64_t *crc)
{
    const cddp_checkpoint_item *items = c->items;
    uint64_t header_bytes = header_bytes_of(c), offset;

    (void)cdi_buf_append(b, MAGIC, 8);
    (void)cdi_buf_put_u32(b, c->ranges != NULL ? VERSION_SHARD : VERSION);
    (void)cdi_buf_put_u32(b, (uint32_t)c->n);
    (void)cdi_buf_put_u64(b, c->step);
    (void)cdi_buf_put_u64(b, header_bytes);
    (void)cdi_buf_put_u64(b, file_bytes_of(c));
    offset = file_align(header_bytes);
    for (size_t i = 0; i < c->n; i++) {
        (void)cdi_buf_put_u64(b, items[i].bytes);
        (void)cdi_buf_put_u64(b, offset);
        (void)cdi_buf_put_u64(b, crc[i]);
        (void)cdi_buf_put_u8(b, (uint8_t)items[i].kind);
        (void)cdi_buf_put_u8(b, (uint8_t)strlen(items[i].name));
        if (c->ranges != NULL) {
            (void)cdi_buf_put_u64(b, c->ranges[i].whole);
            (void)cdi_buf_put_u64(b, c->ranges[i].begin);
        }
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

/* Writes an item piece by piece, which the cache still has after its checksum; from a device through host memory. */
static cddp_status write_item(int fd, const cddp_checkpoint_item *item, uint64_t offset, const struct cdi_mover *mover,
                              uint64_t *crc, struct cdi_error *err)
{
    bool is_away = (item->flags & CDI_ITEM_ON_DEVICE) != 0;
    size_t most = is_away ? MOVED : PIECE, cap = item->bytes < most ? item->bytes : most;
    CDI_AUTOFREE uint8_t *buffer = is_away ? malloc(cap + 1) : NULL;

    if (is_away && buffer == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    for (size_t done = 0; done < item->bytes;) {
        size_t n = item->bytes - done < cap ? item->bytes - done : cap;
        const uint8_t *from = (const uint8_t *)item->data + done;

        if (is_away && mover->ops->move(mover->b, buffer, from, n, err) != CDDP_OK)
            return err->status;
        from = is_away ? buffer : from;
        *crc = cdi_crc64(*crc, from, n);
        if (!checkpoint_write_all(fd, from, n, offset + done))
            return not_written(err);
        done += n;
    }
    return CDDP_OK;
}

/* Writes the items first, since the header has their checksums. */
static cddp_status checkpoint_write_file(int fd, const struct content *c, const struct cdi_mover *mover,
                                         struct cdi_error *err)
{
    const cddp_checkpoint_item *items = c->items;
    uint64_t offset = file_align(header_bytes_of(c));
    CDI_AUTOFREE uint64_t *crc = calloc(c->n + 1, sizeof *crc);
    struct cdi_buf header;
    cddp_status st = crc == NULL ? cdi_fail(err, CDDP_E_NOMEM, "out of memory") : CDDP_OK;

    for (size_t i = 0; i < c->n && st == CDDP_OK; i++) {
        st = write_item(fd, &items[i], offset, mover, &crc[i], err);
        offset = file_align(offset + items[i].bytes);
    }
    if (st != CDDP_OK)
        return st;
    cdi_buf_init(&header, 0);
    if (make_header(&header, c, crc) != CDDP_OK)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    else if (!checkpoint_write_all(fd, cdi_buf_data(&header), header.len, 0) ||
             ftruncate(fd, (off_t)file_bytes_of(c)) != 0 || fsync(fd) != 0)
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

/* Chooses a name that nobody else has. */
static cddp_status make_tmp(char tmp[CDI_DRAFT_NAME], const char *dir, struct cdi_error *err)
{
    uint64_t random;

    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return cdi_fail_errno(err, errno, "checkpoint directory '%s': no random number", dir);
    (void)snprintf(tmp, CDI_DRAFT_NAME, TMP_PREFIX "-%016" PRIx64 ".tmp", random);
    return CDDP_OK;
}

/* Removes a file, or a folder of files. Returns false if it is still there. */
static bool remove_tree(int dir_fd, const char *name)
{
    int fd = unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT
                 ? -1
                 : openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;

    if (fd >= 0 && d == NULL)
        (void)close(fd);
    while (d != NULL && (e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlinkat(fd, e->d_name, 0);
    if (d != NULL)
        (void)closedir(d);
    return faccessat(dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) != 0 || unlinkat(dir_fd, name, AT_REMOVEDIR) == 0;
}

/* Removes a checkpoint. A folder is hidden first: no reader finds a part of it. */
static bool remove_checkpoint(int dir_fd, const char *name)
{
    char tmp[CDI_DRAFT_NAME];

    if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
        return true;
    return make_tmp(tmp, "", NULL) == CDDP_OK && renameat(dir_fd, name, dir_fd, tmp) == 0 && remove_tree(dir_fd, tmp);
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
        if (remove_checkpoint(dir_fd, name))
            (void)cdi_owned_put(dir, steps[i], CDI_OWNED_NOT);
    }
}

/*
 * Removes temporary files and folders that killed runs have left. One that somebody writes is locked. Where a file
 * system has no locks, one is left over that is a day older than `now`, a time of the same clock.
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
        if (fd < 0 && errno == EISDIR)
            fd = openat(dir_fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 ? errno == ELOOP /* a link */
                   : fstat(fd, &sb) == 0 && (S_ISREG(sb.st_mode) || S_ISDIR(sb.st_mode)) &&
                         (flock(fd, LOCK_EX | LOCK_NB) == 0 ||
                          (errno != EWOULDBLOCK && now - sb.st_mtime > (time_t)24 * 3600)))
            (void)remove_tree(dir_fd, e->d_name);
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

struct cdi_draft {
    int dir_fd, fd; /* fd: the file, or the folder of a sharded one; locked */
    bool is_folder, may_replace;
    uint64_t step, bytes;
    struct stat dir;
    char tmp[CDI_DRAFT_NAME], name[64];
};

const char *cdi_draft_name(const struct cdi_draft *d)
{
    return d->tmp;
}

/* Exchanges a checkpoint with what has its name, one of them a folder, which rename does not replace. */
static bool exchange(const struct cdi_draft *d)
{
    char old[CDI_DRAFT_NAME];

    /* by its number: older C libraries have no function for it */
    if (syscall(SYS_renameat2, d->dir_fd, d->tmp, d->dir_fd, d->name, EXCHANGE) == 0) {
        if (fsync(d->dir_fd) == 0) /* not before the new one has the name for good */
            (void)remove_tree(d->dir_fd, d->tmp);
        return true;
    }
    /* A file system that cannot: for a moment there is none of this step. */
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return false;
    if (make_tmp(old, "", NULL) != CDDP_OK || renameat(d->dir_fd, d->name, d->dir_fd, old) != 0 ||
        renameat(d->dir_fd, d->tmp, d->dir_fd, d->name) != 0)
        return false;
    if (fsync(d->dir_fd) == 0)
        (void)remove_tree(d->dir_fd, old);
    return true;
}

/*
 * Gives the file its name, which replaces only a file that this process knows: another job may have saved the same step
 * meanwhile. A file system over a network may report that the name exists, though it has just made it.
 */
static cddp_status publish(const struct cdi_draft *d, struct cdi_error *err)
{
    bool links = !d->may_replace && !d->is_folder, is_there;
    int rc = links ? linkat(d->dir_fd, d->tmp, d->dir_fd, d->name, 0) : -1, error = links && rc != 0 ? errno : 0;
    struct stat sb;

    if (rc == 0 || (links && fstat(d->fd, &sb) == 0 && sb.st_nlink == 2)) {
        (void)unlinkat(d->dir_fd, d->tmp, 0);
    } else {
        if (!d->may_replace && error != EEXIST && faccessat(d->dir_fd, d->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            error = EEXIST; /* a file system without links, or a folder */
        if (!d->may_replace && error == EEXIST)
            return CDDP_E_EXISTS;
        if (renameat(d->dir_fd, d->tmp, d->dir_fd, d->name) != 0) {
            is_there = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR || errno == EISDIR;
            if (is_there && !d->may_replace)
                return CDDP_E_EXISTS;
            if (!is_there || !exchange(d))
                return not_written(err);
        }
    }
    return fsync(d->dir_fd) == 0 ? CDDP_OK : not_written(err);
}

static void draft_free(struct cdi_draft *d)
{
    if (d == NULL)
        return;
    if (d->fd >= 0)
        (void)close(d->fd);
    if (d->dir_fd >= 0)
        (void)close(d->dir_fd);
    free(d);
}

void cdi_draft_drop(struct cdi_draft *d)
{
    if (d != NULL && d->fd >= 0)
        (void)remove_tree(d->dir_fd, d->tmp);
    draft_free(d);
}

static void wrap_unwritten(const struct cdi_draft *d, const char *dir, struct cdi_error *err)
{
    (void)cdi_error_wrap(err, "checkpoint '%s/%s' (%" PRIu64 " bytes) was not written", dir, d->name, d->bytes);
}

static cddp_status draft_begin(struct cdi_draft *d, const char *dir, uint64_t bytes, struct cdi_error *err)
{
    struct stat file;

    d->bytes = bytes;
    if (cdi_checkpoint_may_write(dir, err) != CDDP_OK)
        return err->status;
    d->dir_fd = open_dir(dir, &d->dir, err);
    if (d->dir_fd < 0)
        return err->status;
    d->may_replace = cdi_owned_find(&d->dir, d->step) != CDI_OWNED_NOT;
    (void)snprintf(d->name, sizeof d->name, FILE_NAME, d->step);
    /*
     * Creates a new file, and never opens an existing one: that might be a link to another file, which would be
     * overwritten, or another process's.
     */
    if (make_tmp(d->tmp, dir, err) != CDDP_OK)
        return err->status;
    if (!d->is_folder)
        d->fd = openat(d->dir_fd, d->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    else if (mkdirat(d->dir_fd, d->tmp, 0777) == 0)
        d->fd = openat(d->dir_fd, d->tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (d->fd < 0 || fstat(d->fd, &file) != 0)
        return not_written(err), wrap_unwritten(d, dir, err), err->status;
    (void)flock(d->fd, LOCK_EX | LOCK_NB); /* it is in use, if anybody asks */
    remove_leftovers(d->dir_fd, dir, file.st_mtime);
    return CDDP_OK;
}

/* Publishes what was written with status st, or removes it. Frees d. */
static cddp_status draft_end(struct cdi_draft *d, const char *dir, int keep, cddp_status st, struct cdi_error *err)
{
    /* Known before it is there: a file whose name may not last is this process's, too. */
    if (st == CDDP_OK && cdi_owned_put(&d->dir, d->step, CDI_OWNED_WHOLE) != CDDP_OK)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    if (st == CDDP_OK) {
        st = publish(d, err);
        if (st == CDDP_E_EXISTS)
            (void)cdi_owned_put(&d->dir, d->step, CDI_OWNED_NOT);
    }
    if (st == CDDP_OK)
        remove_old(d->dir_fd, &d->dir, dir, d->step, keep);
    else if (st == CDDP_E_EXISTS)
        st = refuse(dir, d->step, err);
    else
        wrap_unwritten(d, dir, err);
    if (st == CDDP_OK)
        draft_free(d);
    else
        cdi_draft_drop(d);
    return st;
}

/* Returns NULL with an error. */
static struct cdi_draft *draft_new(const char *dir, uint64_t step, bool is_folder, uint64_t bytes,
                                   struct cdi_error *err)
{
    struct cdi_draft *d = calloc(1, sizeof *d);

    if (d == NULL) {
        (void)cdi_fail(err, CDDP_E_NOMEM, "checkpoint: out of memory");
        return NULL;
    }
    *d = (struct cdi_draft){.dir_fd = -1, .fd = -1, .step = step, .is_folder = is_folder};
    if (draft_begin(d, dir, bytes, err) == CDDP_OK)
        return d;
    cdi_draft_drop(d);
    return NULL;
}

cddp_status cdi_checkpoint_write(const char *dir, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                                 int keep, const struct cdi_mover *mover, struct cdi_error *err)
{
    const struct content c = {step, items, NULL, n_items};
    struct cdi_error why;
    struct cdi_draft *d = draft_new(dir, step, false, file_bytes_of(&c), &why);

    if (d == NULL)
        return cdi_fail_since(err, &why, "%s", why.msg);
    return draft_end(d, dir, keep, checkpoint_write_file(d->fd, &c, mover, err), err);
}

/* --------------------------------------------------------------------------------------------------- sharded ---- */

cddp_status cdi_draft_begin(struct cdi_draft **out, const char *dir, uint64_t step, struct cdi_error *err)
{
    struct cdi_error why;
    struct cdi_draft *d = draft_new(dir, step, true, 0, &why);

    if (d == NULL)
        return cdi_fail_since(err, &why, "%s", why.msg);
    *out = d;
    return CDDP_OK;
}

cddp_status cdi_draft_write_shard(const char *dir, const char *draft, size_t rank, size_t n_ranks, uint64_t step,
                                  const cddp_checkpoint_item *items, const struct cdi_range *ranges, size_t n_items,
                                  const struct cdi_mover *mover, struct cdi_error *err)
{
    const struct content c = {step, items, ranges, n_items};
    char path[PATH_MAX], name[64];
    CDI_AUTOCLOSE int folder = -1, fd = -1;
    cddp_status st;

    (void)snprintf(name, sizeof name, SHARD, rank, n_ranks);
    if (snprintf(path, sizeof path, "%s/%s", dir, draft) >= (int)sizeof path)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint directory '%.200s...': the path is too long", dir);
    folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 && errno == ENOENT)
        return cdi_fail(err, CDDP_E_SYSTEM,
                        "checkpoint '%.400s/" FILE_NAME "': rank %zu does not find what rank 0 has begun there: a "
                        "sharded checkpoint needs a directory that all ranks share",
                        dir, step, rank);
    if (folder >= 0)
        fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    st = fd < 0 ? not_written(err) : checkpoint_write_file(fd, &c, mover, err);
    if (st == CDDP_OK && fsync(folder) != 0)
        st = not_written(err);
    return st == CDDP_OK
               ? st
               : cdi_error_wrap(err, "checkpoint '%.400s/" FILE_NAME "': '%s' (%" PRIu64 " bytes) was not written", dir,
                                step, name, file_bytes_of(&c));
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

struct entry {
    uint64_t bytes, offset, crc;
    uint64_t whole, begin; /* of the item, and of these bytes in it */
    const char *name;      /* not terminated */
    uint32_t part;
    uint8_t kind, name_len;
};

/* A file of a checkpoint: its only one, or a shard. */
struct part {
    uint64_t step, bytes, crc; /* crc: of the header */
    uint8_t *header;
    struct entry *entries;
    uint32_t n_entries;
    bool has_ranges;
};

/* An item: its pieces, in their order. */
struct stored {
    const struct entry **piece;
    size_t n;
};

struct cdi_checkpoint_file {
    int fd; /* of part fd_of; -1: none is open */
    size_t fd_of;
    char path[PATH_MAX];
    uint64_t step;
    struct part *parts;
    size_t n_parts;
    bool is_sharded;
    const struct entry **pieces; /* of all parts, by item */
    struct stored *items;
    struct cdi_map by_name;
    uint64_t *steps; /* of all files in the directory, newest first */
    size_t n_steps;
    struct stat dir;
};

static void release_part(struct part *p)
{
    free(p->header);
    free(p->entries);
    *p = (struct part){0};
}

void cdi_checkpoint_close(struct cdi_checkpoint_file *f)
{
    if (f == NULL)
        return;
    if (f->fd >= 0)
        (void)close(f->fd);
    cdi_map_release(&f->by_name);
    for (size_t k = 0; k < f->n_parts; k++)
        release_part(&f->parts[k]);
    free(f->parts);
    free(f->pieces);
    free(f->items);
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
 * Fills p->entries from a header with the right checksum. Returns false if its numbers are inconsistent nevertheless.
 */
static bool parse_entries(struct part *p, uint64_t header_bytes)
{
    const uint8_t *at = p->header + FIXED_BYTES, *end = p->header + header_bytes - 8;
    ptrdiff_t size = ENTRY_BYTES + (p->has_ranges ? RANGE_BYTES : 0);

    for (uint32_t i = 0; i < p->n_entries; i++) {
        struct entry *e = &p->entries[i];

        if (end - at < size)
            return false;
        *e = (struct entry){.bytes = get_uint(at, 8),
                            .offset = get_uint(at + 8, 8),
                            .crc = get_uint(at + 16, 8),
                            .name = (const char *)at + size,
                            .kind = at[24],
                            .name_len = at[25]};
        e->whole = p->has_ranges ? get_uint(at + ENTRY_BYTES, 8) : e->bytes;
        e->begin = p->has_ranges ? get_uint(at + ENTRY_BYTES + 8, 8) : 0;
        if (end - at < size + e->name_len || e->offset > p->bytes || e->bytes > p->bytes - e->offset ||
            e->begin > e->whole || e->bytes > e->whole - e->begin)
            return false;
        at += size + e->name_len;
    }
    return at == end;
}

/* A dangling link, a directory or a pipe may have the name of a checkpoint: CDDP_E_IO, as for a damaged file. */
static cddp_status checkpoint_open_file(int *fd, const char *path, struct stat *sb, struct cdi_error *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would block */
    if (*fd < 0 && (errno == ENOENT || errno == ELOOP || errno == ENXIO))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be opened: %s", path, strerror(errno));
    if (*fd < 0 || fstat(*fd, sb) != 0)
        return cdi_fail_errno(err, errno, "checkpoint '%s'", path);
    return CDDP_OK;
}

/*
 * Reads a part's header, and checks it. Any wrong bytes are CDDP_E_IO: the file is damaged. The caller releases the
 * part, also on failure.
 */
static cddp_status read_header(struct part *p, int fd, const char *path, struct cdi_error *err)
{
    uint8_t fixed[FIXED_BYTES];
    struct stat sb;
    uint64_t header_bytes, version;

    if (fstat(fd, &sb) != 0)
        return cdi_fail_errno(err, errno, "checkpoint '%s'", path);
    if (!S_ISREG(sb.st_mode))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is not a file", path);
    if (sb.st_size < (off_t)sizeof fixed || !checkpoint_read_all(fd, fixed, sizeof fixed, 0) ||
        memcmp(fixed, MAGIC, 8) != 0)
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: it does not start like a checkpoint", path);
    version = get_uint(fixed + 8, 4);
    p->n_entries = (uint32_t)get_uint(fixed + 12, 4);
    p->step = get_uint(fixed + 16, 8);
    header_bytes = get_uint(fixed + 24, 8);
    p->bytes = get_uint(fixed + 32, 8);
    if ((uint64_t)sb.st_size != p->bytes)
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: it has %" PRIu64 " of its %" PRIu64 " bytes", path,
                        (uint64_t)sb.st_size, p->bytes);
    /* Before memory is allocated: no more than for what the file really holds. */
    if (header_bytes < FIXED_BYTES + 8 || header_bytes > MAX_HEADER || header_bytes > p->bytes ||
        p->n_entries > (header_bytes - FIXED_BYTES - 8) / ENTRY_BYTES)
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its header is inconsistent", path);
    p->header = malloc(header_bytes);
    p->entries = calloc(p->n_entries + 1u, sizeof *p->entries);
    if (p->header == NULL || p->entries == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", path);
    if (!checkpoint_read_all(fd, p->header, header_bytes, 0))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be read", path);
    p->crc = get_uint(p->header + header_bytes - 8, 8);
    if (cdi_crc64(0, p->header, header_bytes - 8) != p->crc)
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its header's checksum is wrong", path);
    /* Checked only now: a flipped bit does not mean another format. */
    if (version != VERSION && version != VERSION_SHARD)
        return cdi_fail(err, CDDP_E_VERSION,
                        "checkpoint '%s' has format %" PRIu64 "; this libcddp reads formats %u and %u", path, version,
                        VERSION, VERSION_SHARD);
    p->has_ranges = version == VERSION_SHARD;
    return parse_entries(p, header_bytes)
               ? CDDP_OK
               : cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its header is inconsistent", path);
}

static cddp_status read_part(struct part *p, const char *path, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = -1;
    struct stat sb;

    if (checkpoint_open_file(&fd, path, &sb, err) != CDDP_OK)
        return err->status;
    return read_header(p, fd, path, err);
}

/* --- the shards of a folder */

#define PATH_BYTES (PATH_MAX + 64)

/* Writes the path of part k. */
static void part_path(const struct cdi_checkpoint_file *f, size_t k, char path[PATH_BYTES])
{
    if (f->is_sharded)
        (void)snprintf(path, PATH_BYTES, "%s/" SHARD, f->path, k, f->n_parts);
    else
        (void)snprintf(path, PATH_BYTES, "%s", f->path);
}

/* What the index has of each shard, eight bytes each: its size, and its header's checksum. */
#define INDEXED 16

/* Reads the shards' headers, and compares them with the index. */
static cddp_status read_shards(struct cdi_checkpoint_file *f, const uint8_t *index, struct cdi_error *err)
{
    for (size_t k = 0; k < f->n_parts; k++) {
        struct part *p = &f->parts[k];
        char path[PATH_BYTES];

        part_path(f, k, path);
        if (access(path, F_OK) != 0 && errno == ENOENT)
            return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: the file of rank %zu, '" SHARD "', is missing",
                            f->path, k, k, f->n_parts);
        if (read_part(p, path, err) != CDDP_OK)
            return err->status;
        if (p->bytes != get_uint(index + INDEXED * k, 8) || p->crc != get_uint(index + INDEXED * k + 8, 8) ||
            p->step != f->step || !p->has_ranges)
            return cdi_fail(err, CDDP_E_IO,
                            "checkpoint '%s' is damaged: the file of rank %zu, '" SHARD "', is of another checkpoint",
                            f->path, k, k, f->n_parts);
    }
    return CDDP_OK;
}

static cddp_status open_shards(struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    char path[PATH_BYTES];
    CDI_AUTOFREE uint8_t *index = NULL;
    CDI_AUTOCLOSE int fd = -1;
    struct part head = {0};
    struct stat sb;
    cddp_status st;

    f->is_sharded = true;
    (void)snprintf(path, sizeof path, "%s/" INDEX, f->path);
    st = checkpoint_open_file(&fd, path, &sb, err);
    if (st == CDDP_OK)
        st = read_header(&head, fd, path, err);
    if (st == CDDP_OK && (head.n_entries != 1 || head.entries[0].bytes == 0 || head.entries[0].bytes % INDEXED != 0 ||
                          head.step != f->step))
        st = cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: it is not an index of step %" PRIu64, path, f->step);
    if (st == CDDP_OK) {
        size_t bytes = (size_t)head.entries[0].bytes, n = bytes / INDEXED;

        index = malloc(bytes);
        f->parts = calloc(n, sizeof *f->parts);
        f->n_parts = f->parts != NULL ? n : 0;
        if (index == NULL || f->parts == NULL)
            st = cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", path);
        else if (!checkpoint_read_all(fd, index, bytes, head.entries[0].offset) ||
                 cdi_crc64(0, index, bytes) != head.entries[0].crc)
            st = cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its checksum is wrong", path);
    }
    release_part(&head);
    return st == CDDP_OK ? read_shards(f, index, err) : st;
}

cddp_status cdi_draft_publish(struct cdi_draft *d, const char *dir, size_t n_ranks, int keep, struct cdi_error *err)
{
    CDI_AUTOFREE uint8_t *index = malloc(INDEXED * n_ranks);
    const cddp_checkpoint_item item = {
        .size = sizeof item, .name = "shards", .data = index, .bytes = INDEXED * n_ranks, .kind = CDDP_ITEM_MEMORY};
    const struct content c = {d->step, &item, NULL, 1};
    CDI_AUTOCLOSE int fd = -1;
    cddp_status st = index == NULL ? cdi_fail(err, CDDP_E_NOMEM, "out of memory") : CDDP_OK;

    for (size_t k = 0; k < n_ranks && st == CDDP_OK; k++) {
        struct part p = {0};
        char path[PATH_BYTES];

        (void)snprintf(path, sizeof path, "%.*s/%s/" SHARD, PATH_MAX - 64, dir, d->tmp, k, n_ranks);
        st = read_part(&p, path, err);
        for (int i = 0; i < 8 && index != NULL; i++) {
            index[INDEXED * k + (size_t)i] = (uint8_t)(p.bytes >> 8 * i);
            index[INDEXED * k + 8 + (size_t)i] = (uint8_t)(p.crc >> 8 * i);
        }
        d->bytes += p.bytes;
        release_part(&p);
    }
    if (st == CDDP_OK) {
        fd = openat(d->fd, INDEX, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        st = fd < 0 ? not_written(err) : checkpoint_write_file(fd, &c, NULL, err);
    }
    if (st == CDDP_OK && fsync(d->fd) != 0)
        st = not_written(err);
    return draft_end(d, dir, keep, st, err);
}

/* --- items, which may have pieces in several parts */

static int by_place(const void *a, const void *b)
{
    const struct entry *x = *(const struct entry *const *)a, *y = *(const struct entry *const *)b;
    size_t len = x->name_len < y->name_len ? x->name_len : y->name_len;
    int order = memcmp(x->name, y->name, len);

    if (order != 0 || x->name_len != y->name_len)
        return order != 0 ? order : (int)x->name_len - (int)y->name_len;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* an empty piece comes first */
}

static bool is_same_item(const struct entry *a, const struct entry *b)
{
    return a->name_len == b->name_len && memcmp(a->name, b->name, a->name_len) == 0;
}

/* Checks that the pieces of an item, in their order, are all of it. */
static cddp_status check_pieces(const struct cdi_checkpoint_file *f, const struct stored *s, struct cdi_error *err)
{
    const struct entry *first = s->piece[0];
    uint64_t end = 0;
    size_t i = 0;

    for (; i < s->n; i++) {
        const struct entry *e = s->piece[i];

        if (e->begin != end || e->whole != first->whole || e->kind != first->kind)
            break;
        end += e->bytes;
    }
    return i == s->n && end == first->whole
               ? CDDP_OK
               : cdi_fail(err, CDDP_E_IO,
                          "checkpoint '%s' is damaged: what its files have of item '%.*s' ends after %" PRIu64
                          " of %" PRIu64 " bytes",
                          f->path, (int)first->name_len, first->name, end, first->whole);
}

/* Lists the pieces of each item. Of two items of one name in a file, which no save writes, the first one counts. */
static cddp_status index_items(struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    size_t n = 0, m = 0;
    cddp_status st = CDDP_OK;

    for (size_t k = 0; k < f->n_parts; k++)
        n += f->parts[k].n_entries;
    cdi_map_init(&f->by_name);
    f->pieces = calloc(n + 1, sizeof *f->pieces); /* NOLINT(bugprone-sizeof-expression): they are pointers */
    f->items = calloc(n + 1, sizeof *f->items);
    if (f->pieces == NULL || f->items == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", f->path);
    n = 0;
    for (size_t k = 0; k < f->n_parts; k++)
        for (uint32_t i = 0; i < f->parts[k].n_entries; i++) {
            f->parts[k].entries[i].part = (uint32_t)k;
            f->pieces[n++] = &f->parts[k].entries[i];
        }
    if (f->is_sharded)
        qsort(f->pieces, n, sizeof *f->pieces, by_place); /* NOLINT(bugprone-sizeof-expression): pointers */
    for (size_t i = 0; i < n && st == CDDP_OK; i += f->items[m - 1].n) {
        struct stored *s = &f->items[m++];
        const struct entry *e = f->pieces[i];

        *s = (struct stored){&f->pieces[i], 1};
        while (f->is_sharded && i + s->n < n && is_same_item(e, f->pieces[i + s->n]))
            s->n++;
        if (f->is_sharded)
            st = check_pieces(f, s, err);
        if (st == CDDP_OK && cdi_map_get(&f->by_name, e->name, e->name_len) == NULL &&
            cdi_map_add(&f->by_name, e->name, e->name_len, s) != CDDP_OK)
            st = cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", f->path);
    }
    return st;
}

/* Reads from a part's file, which is opened if it is not the last one. */
static cddp_status read_from(struct cdi_checkpoint_file *f, size_t part, void *data, size_t len, uint64_t offset,
                             struct cdi_error *err)
{
    char path[PATH_BYTES];
    struct stat sb;

    part_path(f, part, path);
    if (f->fd < 0 || f->fd_of != part) {
        if (f->fd >= 0)
            (void)close(f->fd);
        f->fd_of = part;
        if (checkpoint_open_file(&f->fd, path, &sb, err) != CDDP_OK)
            return err->status;
    }
    return checkpoint_read_all(f->fd, data, len, offset)
               ? CDDP_OK
               : cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be read", path);
}

static cddp_status verify_piece(struct cdi_checkpoint_file *f, const struct entry *e, uint8_t *buffer,
                                struct cdi_error *err)
{
    char path[PATH_BYTES];
    uint64_t crc = 0;

    for (uint64_t done = 0; done < e->bytes;) {
        size_t n = e->bytes - done < PIECE ? (size_t)(e->bytes - done) : PIECE;

        if (read_from(f, e->part, buffer, n, e->offset + done, err) != CDDP_OK)
            return err->status;
        crc = cdi_crc64(crc, buffer, n);
        done += n;
    }
    part_path(f, e->part, path);
    return crc == e->crc ? CDDP_OK
                         : cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: the checksum of item '%.*s' is wrong",
                                    path, (int)e->name_len, e->name);
}

/*
 * Compares checksums before a byte of the caller's memory is changed: those of share `mine` of `shares`, which are
 * whole shards where there are several.
 */
static cddp_status verify_items(struct cdi_checkpoint_file *f, size_t mine, size_t shares, struct cdi_error *err)
{
    CDI_AUTOFREE uint8_t *buffer = malloc(PIECE);
    cddp_status st = CDDP_OK;

    if (buffer == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", f->path);
    for (size_t k = 0; k < f->n_parts; k++)
        for (uint32_t i = 0; i < f->parts[k].n_entries && st == CDDP_OK; i++)
            if ((f->n_parts > 1 ? k : i) % shares == mine)
                st = verify_piece(f, &f->parts[k].entries[i], buffer, err);
    return st;
}

static const struct stored *find_item(const struct cdi_checkpoint_file *f, const char *name)
{
    return cdi_map_get(&f->by_name, name, strlen(name));
}

/* Returns true if an item may be missing: that of a rank that did not exist at the save, but not rank 0's. */
static bool may_miss(const cddp_checkpoint_item *item)
{
    size_t len = strlen(item->name);

    return (item->flags & CDDP_ITEM_PER_RANK) != 0 && (len < 3 || strcmp(item->name + len - 3, "[0]") != 0);
}

/* Reads bytes of a part into memory on a device, piece by piece through host memory. */
static cddp_status fill_away(struct cdi_checkpoint_file *f, size_t part, void *data, size_t bytes, uint64_t offset,
                             const struct cdi_mover *mover, struct cdi_error *err)
{
    size_t cap = bytes < MOVED ? bytes : MOVED;
    CDI_AUTOFREE uint8_t *piece = malloc(cap + 1);
    cddp_status st = piece == NULL ? cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", f->path) : CDDP_OK;

    for (size_t done = 0; done < bytes && st == CDDP_OK;) {
        size_t n = bytes - done < cap ? bytes - done : cap;

        st = read_from(f, part, piece, n, offset + done, err);
        if (st == CDDP_OK)
            st = mover->ops->move(mover->b, (uint8_t *)data + done, piece, n, err);
        done += n;
    }
    return st;
}

bool cdi_checkpoint_find(const struct cdi_checkpoint_file *f, const char *name, size_t *bytes)
{
    const struct stored *s = find_item(f, name);

    if (s != NULL && bytes != NULL)
        *bytes = s->piece[0]->whole;
    return s != NULL;
}

const char *cdi_checkpoint_kind_name(unsigned kind)
{
    static const char *const names[] = {[CDDP_ITEM_MEMORY] = "memory",
                                        [CDDP_ITEM_SAMPLER] = "a sampler",
                                        [CDDP_ITEM_OPTIM] = "an optimizer",
                                        [CDDP_ITEM_DDP] = "a reducer",
                                        [CDDP_ITEM_FSDP] = "a sharded model"};

    return kind < sizeof names / sizeof names[0] ? names[kind] : "something unknown";
}

cddp_status cdi_checkpoint_fit(const struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items,
                               const struct cdi_range *ranges, size_t n_items, uint8_t *present, struct cdi_error *err)
{
    for (size_t i = 0; i < n_items; i++) {
        const struct stored *s = find_item(f, items[i].name);
        const struct entry *e = s == NULL ? NULL : s->piece[0];
        uint64_t bytes = ranges != NULL ? ranges[i].whole : items[i].bytes;

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
        if (e->whole != bytes)
            return cdi_fail(err, CDDP_E_MISMATCH,
                            "checkpoint '%s': item '%s' has %" PRIu64 " bytes there and %" PRIu64 " in this program",
                            f->path, items[i].name, e->whole, bytes);
    }
    return CDDP_OK;
}

/* Reads bytes [begin, begin + item->bytes) of an item. */
static cddp_status fill_item(struct cdi_checkpoint_file *f, const struct stored *s, const cddp_checkpoint_item *item,
                             uint64_t begin, const struct cdi_mover *mover, struct cdi_error *err)
{
    size_t lo = 0, hi = s->n, done = 0;
    cddp_status st = CDDP_OK;

    while (hi - lo > 1) { /* the last piece that begins at or before it */
        size_t mid = lo + (hi - lo) / 2;

        if (s->piece[mid]->begin <= begin)
            lo = mid;
        else
            hi = mid;
    }
    for (; lo < s->n && done < item->bytes && st == CDDP_OK; lo++) {
        const struct entry *e = s->piece[lo];
        uint64_t skip = begin + done - e->begin, left = e->bytes - skip;
        size_t n = left < item->bytes - done ? (size_t)left : item->bytes - done;
        void *to = (uint8_t *)item->data + done;

        if ((item->flags & CDI_ITEM_ON_DEVICE) != 0)
            st = fill_away(f, e->part, to, n, e->offset + skip, mover, err);
        else
            st = read_from(f, e->part, to, n, e->offset + skip, err);
        done += n;
    }
    return st;
}

cddp_status cdi_checkpoint_fill(struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items,
                                const struct cdi_range *ranges, size_t n_items, const struct cdi_mover *mover,
                                struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n_items && st == CDDP_OK; i++) {
        const struct stored *s = find_item(f, items[i].name);

        if (s != NULL)
            st = fill_item(f, s, &items[i], ranges != NULL ? ranges[i].begin : 0, mover, err);
    }
    return st;
}

cddp_status cdi_checkpoint_open_step(struct cdi_checkpoint_file **out, const char *dir, uint64_t step, size_t mine,
                                     size_t shares, struct cdi_error *err)
{
    struct cdi_checkpoint_file *f = calloc(1, sizeof *f);
    struct stat sb;
    cddp_status st;

    *out = f;
    if (f == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint directory '%.200s': out of memory", dir);
    f->fd = -1;
    f->step = step;
    if (snprintf(f->path, sizeof f->path, "%s/" FILE_NAME, dir, step) >= (int)sizeof f->path)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint directory '%.200s...': the path is too long", dir);
    if (checkpoint_open_file(&f->fd, f->path, &sb, err) != CDDP_OK)
        return mine == 0 || access(f->path, F_OK) == 0 || errno != ENOENT
                   ? err->status
                   : cdi_fail(err, CDDP_E_SYSTEM,
                              "checkpoint '%s', which rank 0 finds, is not here: all ranks read it, so they need a "
                              "directory that they share",
                              f->path);
    if (S_ISDIR(sb.st_mode)) {
        (void)close(f->fd);
        f->fd = -1;
        st = open_shards(f, err);
    } else {
        f->parts = calloc(1, sizeof *f->parts);
        f->n_parts = f->parts != NULL;
        st = f->parts == NULL ? cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", f->path)
                              : read_header(f->parts, f->fd, f->path, err);
        if (st == CDDP_OK && f->parts->has_ranges)
            st = cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: it is a shard without its index", f->path);
    }
    if (st == CDDP_OK)
        st = index_items(f, err);
    if (st == CDDP_OK)
        st = verify_items(f, mine, shares, err);
    if (st == CDDP_OK && stat(dir, &f->dir) != 0)
        st = cdi_fail_errno(err, errno, "checkpoint directory '%s'", dir);
    return st;
}

bool cdi_checkpoint_is_sharded(const char *dir, uint64_t step)
{
    char path[PATH_MAX];
    struct stat sb;

    return snprintf(path, sizeof path, "%s/" FILE_NAME, dir, step) < (int)sizeof path && stat(path, &sb) == 0 &&
           S_ISDIR(sb.st_mode);
}

cddp_status cdi_search_begin(struct cdi_search *s, const char *dir, struct cdi_error *err)
{
    cddp_status st;

    *s = (struct cdi_search){.dir = dir, .info = {.size = sizeof s->info}};
    st = list_steps(dir, &s->steps, &s->n, err);
    return st == CDDP_OK && s->n == 0 ? cdi_fail(err, CDDP_E_NOT_FOUND, "no checkpoint in '%s'", dir) : st;
}

cddp_status cdi_search_pass_over(struct cdi_search *s, const struct cdi_error *why, struct cdi_error *err)
{
    if (s->info.n_damaged++ == 0)
        (void)snprintf(s->info.damaged, sizeof s->info.damaged, "%.500s", why->msg);
    if (++s->at < s->n)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_IO, "none of the %zu checkpoints in '%s' is whole; the newest: %s", s->n, s->dir,
                    s->info.damaged);
}

void cdi_search_found(struct cdi_search *s, struct cdi_checkpoint_file *f)
{
    s->info.step = s->steps[s->at];
    f->n_steps = s->n;
    f->steps = cdi_steal(&s->steps);
}

cddp_status cdi_checkpoint_open(struct cdi_checkpoint_file **out, const char *dir, cddp_checkpoint_info *info,
                                struct cdi_error *err)
{
    struct cdi_error why = {.status = CDDP_OK};
    struct cdi_search s;
    cddp_status st = cdi_search_begin(&s, dir, err);

    *out = NULL;
    while (st == CDDP_OK) {
        st = cdi_checkpoint_open_step(out, dir, s.steps[s.at], 0, 1, &why);
        if (st == CDDP_OK) {
            cdi_search_found(&s, *out);
            *info = s.info;
            break;
        }
        cdi_checkpoint_close(*out);
        *out = NULL;
        st = st == CDDP_E_IO ? cdi_search_pass_over(&s, &why, err) : cdi_fail_since(err, &why, "%s", why.msg);
    }
    free(s.steps);
    return st;
}

cddp_status cdi_checkpoint_own(const struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    cddp_status st = cdi_owned_begin(&f->dir);

    /* Those that are newer were passed over. */
    for (size_t i = f->n_steps; i-- > 0 && st == CDDP_OK;)
        st = cdi_owned_put(&f->dir, f->steps[i], f->steps[i] > f->step ? CDI_OWNED_DAMAGED : CDI_OWNED_WHOLE);
    return st == CDDP_OK ? CDDP_OK : cdi_fail(err, st, "checkpoint '%s': out of memory", f->path);
}
