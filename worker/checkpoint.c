/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint.h"

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/crc64.h"
#include "worker/sized.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAGIC "CDDPCKPT"
#define VERSION 1u
#define ALIGN 64u
#define FIXED_BYTES (8 + 4 + 4 + 8 + 8 + 8)
#define MAX_NAME 255u
#define MAX_HEADER ((uint64_t)FIXED_BYTES + 8 + (uint64_t)CDI_CHECKPOINT_MAX_ITEMS * (25 + MAX_NAME))
#define PIECE ((size_t)1 << 20)
#define MOVED ((size_t)4 << 20) /* bytes that come from a device, or go there, at once */
#define FILE_NAME "checkpoint-%020" PRIu64 ".cddp"

cddp_status cdi_checkpoint_check_items(const cddp_checkpoint_item *items, size_t n_items, struct cdi_error *err)
{
    if (n_items == 0 || items == NULL || n_items > CDI_CHECKPOINT_MAX_ITEMS)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: %zu items; there must be 1 to %d", n_items,
                        CDI_CHECKPOINT_MAX_ITEMS);
    for (size_t i = 0; i < n_items; i++) {
        size_t len = items[i].name == NULL ? 0 : strlen(items[i].name);

        if (len == 0 || len > MAX_NAME)
            return cdi_fail(err, CDDP_E_INVALID, "checkpoint: item %zu needs a name of 1 to %u bytes", i, MAX_NAME);
        if (items[i].data == NULL && items[i].bytes > 0)
            return cdi_fail(err, CDDP_E_INVALID, "checkpoint: item '%s' has no memory", items[i].name);
        if ((items[i].flags & ~CDDP_ITEM_PER_RANK) != 0 || items[i].zero != 0)
            return cdi_fail(err, CDDP_E_INVALID, "checkpoint: item '%s' has flags that this libcddp does not know",
                            items[i].name);
        for (size_t k = 0; k < i; k++)
            if (strcmp(items[k].name, items[i].name) == 0)
                return cdi_fail(err, CDDP_E_INVALID, "checkpoint: two items are named '%s'", items[i].name);
    }
    return CDDP_OK;
}

cddp_checkpoint_item *cdi_checkpoint_join(const cddp_checkpoint_item *a, size_t n_a, const cddp_checkpoint_item *b,
                                          size_t n_b, struct cdi_error *err)
{
    CDI_AUTOFREE cddp_checkpoint_item *known = NULL;
    cddp_checkpoint_item *all;

    if (n_a > CDI_CHECKPOINT_MAX_ITEMS) {
        (void)cdi_fail(err, CDDP_E_INVALID, "checkpoint: %zu items; there must be 1 to %d", n_a,
                       CDI_CHECKPOINT_MAX_ITEMS);
        return NULL;
    }
    known = cdi_sized_get_list(sizeof *known, a, n_a, "cddp_checkpoint_item", err);
    if (known == NULL || n_b == 0)
        return cdi_steal(&known);
    all = realloc(known, (n_a + n_b) * sizeof *all);
    if (all == NULL) {
        (void)cdi_fail(err, CDDP_E_NOMEM, "checkpoint: no memory for %zu items", n_a + n_b);
        return NULL;
    }
    known = NULL;
    memcpy(all + n_a, b, n_b * sizeof *all);
    return all;
}

static uint64_t aligned(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* --------------------------------------------------------------------------------------------------- writing ---- */

static uint64_t header_bytes_of(const cddp_checkpoint_item *items, size_t n_items)
{
    uint64_t bytes = FIXED_BYTES + 8;

    for (size_t i = 0; i < n_items; i++)
        bytes += 25 + strlen(items[i].name);
    return bytes;
}

static uint64_t file_bytes_of(const cddp_checkpoint_item *items, size_t n_items)
{
    uint64_t bytes = aligned(header_bytes_of(items, n_items));

    for (size_t i = 0; i < n_items; i++)
        bytes = aligned(bytes + items[i].bytes);
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
    offset = aligned(header_bytes);
    for (size_t i = 0; i < n_items; i++) {
        (void)cdi_buf_put_u64(b, items[i].bytes);
        (void)cdi_buf_put_u64(b, offset);
        (void)cdi_buf_put_u64(b, crc[i]);
        (void)cdi_buf_put_u8(b, (uint8_t)strlen(items[i].name));
        (void)cdi_buf_append(b, items[i].name, strlen(items[i].name));
        offset = aligned(offset + items[i].bytes);
    }
    (void)cdi_buf_put_u64(b, cdi_crc64(0, cdi_buf_data(b), b->len));
    /* Only memory can have run out above, and then the length tells. */
    return b->len == header_bytes ? CDDP_OK : CDDP_E_NOMEM;
}

static bool write_all(int fd, const void *data, size_t len, uint64_t offset)
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

/* An item that is on a device, piece by piece through host memory. */
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
        if (!write_all(fd, piece, n, offset + done))
            return not_written(err);
        done += n;
    }
    return CDDP_OK;
}

/* The items first, since the header has their checksums. */
static cddp_status write_file(int fd, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                              const struct cdi_mover *mover, struct cdi_error *err)
{
    uint64_t offset = aligned(header_bytes_of(items, n_items));
    CDI_AUTOFREE uint64_t *crc = calloc(n_items + 1, sizeof *crc);
    struct cdi_buf header;
    cddp_status st = crc == NULL ? cdi_fail(err, CDDP_E_NOMEM, "out of memory") : CDDP_OK;

    for (size_t i = 0; i < n_items && st == CDDP_OK; i++) {
        if ((items[i].flags & CDI_ITEM_AWAY) != 0) {
            st = write_away(fd, &items[i], offset, mover, &crc[i], err);
        } else {
            crc[i] = cdi_crc64(0, items[i].data, items[i].bytes);
            st = write_all(fd, items[i].data, items[i].bytes, offset) ? CDDP_OK : not_written(err);
        }
        offset = aligned(offset + items[i].bytes);
    }
    if (st != CDDP_OK)
        return st;
    cdi_buf_init(&header, 0);
    if (make_header(&header, step, items, n_items, crc) != CDDP_OK)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    else if (!write_all(fd, cdi_buf_data(&header), header.len, 0) ||
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

/* The steps of all checkpoints in dir, newest first; *steps is malloc'ed. ENOENT is CDDP_E_NOT_FOUND. */
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

/* Old checkpoints, and temporary files that a killed run left. What cannot be removed is not worth failing a save. */
static void remove_old(int dir_fd, const char *dir, uint64_t just_written, int keep)
{
    CDI_AUTOFREE uint64_t *steps = NULL;
    size_t n = 0;
    char name[64];
    int kept = 0;

    if (list_steps(dir, &steps, &n, NULL) != CDDP_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        /* A step newer than ours belongs to a life of the job that was abandoned: ours is the newest now. */
        if (steps[i] == just_written || (steps[i] < just_written && ++kept < keep))
            continue;
        (void)snprintf(name, sizeof name, FILE_NAME, steps[i]);
        (void)unlinkat(dir_fd, name, 0);
    }
}

cddp_status cdi_checkpoint_write(const char *dir, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                                 int keep, const struct cdi_mover *mover, struct cdi_error *err)
{
    static const char tmp[] = ".checkpoint.tmp"; /* one writer per directory: a killed run's is removed */
    CDI_AUTOCLOSE int dir_fd = -1, fd = -1;
    char name[64];
    cddp_status st;

    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return cdi_fail_errno(err, errno, "checkpoint: making the directory '%s'", dir);
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return cdi_fail_errno(err, errno, "checkpoint directory '%s'", dir);

    (void)snprintf(name, sizeof name, FILE_NAME, step);
    /* A new file, never one that somebody else has put there: it might be a link to what must not be overwritten. */
    (void)unlinkat(dir_fd, tmp, 0);
    fd = openat(dir_fd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    st = fd < 0 ? not_written(err) : write_file(fd, step, items, n_items, mover, err);
    if (st == CDDP_OK && (renameat(dir_fd, tmp, dir_fd, name) != 0 || fsync(dir_fd) != 0))
        st = not_written(err);
    if (st != CDDP_OK) {
        (void)unlinkat(dir_fd, tmp, 0);
        (void)cdi_error_wrap(err, "checkpoint '%s/%s' (%" PRIu64 " bytes) was not written", dir, name,
                             file_bytes_of(items, n_items));
        return st;
    }
    remove_old(dir_fd, dir, step, keep);
    return CDDP_OK;
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

struct entry {
    uint64_t bytes, offset, crc;
    const char *name; /* not terminated */
    uint8_t name_len;
};

struct reader {
    int fd;
    uint64_t step;
    uint8_t *header;
    struct entry *entries;
    uint32_t n_entries;
};

static void reader_release(struct reader *r)
{
    if (r->fd >= 0)
        (void)close(r->fd);
    free(r->header);
    free(r->entries);
}

static bool read_all(int fd, void *data, size_t len, uint64_t offset)
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

/* Fill r->entries from a header whose checksum is right; false if its numbers make no sense all the same. */
static bool parse_entries(struct reader *r, uint64_t header_bytes, uint64_t file_bytes)
{
    const uint8_t *p = r->header + FIXED_BYTES, *end = r->header + header_bytes - 8;

    for (uint32_t i = 0; i < r->n_entries; i++) {
        struct entry *e = &r->entries[i];

        if (end - p < 25)
            return false;
        *e = (struct entry){get_uint(p, 8), get_uint(p + 8, 8), get_uint(p + 16, 8), (const char *)p + 25, p[24]};
        if (end - p < 25 + e->name_len || e->offset > file_bytes || e->bytes > file_bytes - e->offset)
            return false;
        p += 25 + e->name_len;
    }
    return p == end;
}

/* A link to nothing, a folder or a pipe has the name of a checkpoint, and is none: CDDP_E_IO, as of a damaged file. */
static cddp_status open_file(struct reader *r, const char *path, struct stat *sb, struct cdi_error *err)
{
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would block */
    if (r->fd < 0 && (errno == ENOENT || errno == ELOOP || errno == ENXIO))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be opened: %s", path, strerror(errno));
    if (r->fd < 0 || fstat(r->fd, sb) != 0)
        return cdi_fail_errno(err, errno, "checkpoint '%s'", path);
    if (!S_ISREG(sb->st_mode))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is not a file", path);
    return CDDP_OK;
}

/* Open, read and check the header. Anything wrong with the bytes is CDDP_E_IO: this file is damaged. */
static cddp_status read_header(struct reader *r, const char *path, struct cdi_error *err)
{
    uint8_t fixed[FIXED_BYTES];
    struct stat sb;
    uint64_t header_bytes, file_bytes;

    if (open_file(r, path, &sb, err) != CDDP_OK)
        return err->status;
    if (sb.st_size < (off_t)sizeof fixed || !read_all(r->fd, fixed, sizeof fixed, 0) || memcmp(fixed, MAGIC, 8) != 0)
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: it does not begin as one", path);
    r->n_entries = (uint32_t)get_uint(fixed + 12, 4);
    r->step = get_uint(fixed + 16, 8);
    header_bytes = get_uint(fixed + 24, 8);
    file_bytes = get_uint(fixed + 32, 8);
    if ((uint64_t)sb.st_size != file_bytes)
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: it has %" PRIu64 " of its %" PRIu64 " bytes", path,
                        (uint64_t)sb.st_size, file_bytes);
    if (header_bytes < FIXED_BYTES + 8 || header_bytes > MAX_HEADER || header_bytes > file_bytes ||
        r->n_entries > CDI_CHECKPOINT_MAX_ITEMS)
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its header makes no sense", path);
    r->header = malloc(header_bytes);
    r->entries = calloc(r->n_entries + 1u, sizeof *r->entries);
    if (r->header == NULL || r->entries == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", path);
    if (!read_all(r->fd, r->header, header_bytes, 0) ||
        cdi_crc64(0, r->header, header_bytes - 8) != get_uint(r->header + header_bytes - 8, 8))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its header's checksum is wrong", path);
    /* Only now: a flipped bit is not another format. */
    if (get_uint(fixed + 8, 4) != VERSION)
        return cdi_fail(err, CDDP_E_VERSION, "checkpoint '%s' has format %" PRIu64 "; this libcddp reads format %u",
                        path, get_uint(fixed + 8, 4), VERSION);
    if (!parse_entries(r, header_bytes, file_bytes))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its header makes no sense", path);
    return CDDP_OK;
}

/* Compare every item's checksum, before a byte of the caller's memory is changed. */
static cddp_status verify_items(const struct reader *r, const char *path, struct cdi_error *err)
{
    CDI_AUTOFREE uint8_t *piece = malloc(PIECE);

    if (piece == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", path);
    for (uint32_t i = 0; i < r->n_entries; i++) {
        const struct entry *e = &r->entries[i];
        uint64_t crc = 0;

        for (uint64_t done = 0; done < e->bytes;) {
            size_t n = e->bytes - done < PIECE ? (size_t)(e->bytes - done) : PIECE;

            if (!read_all(r->fd, piece, n, e->offset + done))
                return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be read", path);
            crc = cdi_crc64(crc, piece, n);
            done += n;
        }
        if (crc != e->crc)
            return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: the checksum of item '%.*s' is wrong", path,
                            (int)e->name_len, e->name);
    }
    return CDDP_OK;
}

static const struct entry *find_entry(const struct reader *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_entries; i++)
        if (strlen(name) == r->entries[i].name_len && memcmp(name, r->entries[i].name, r->entries[i].name_len) == 0)
            return &r->entries[i];
    return NULL;
}

/* May an item be missing? One of a rank that did not exist when it was saved, but not that of rank 0. */
static bool may_miss(const cddp_checkpoint_item *item)
{
    size_t len = strlen(item->name);

    return (item->flags & CDDP_ITEM_PER_RANK) != 0 && (len < 3 || strcmp(item->name + len - 3, "[0]") != 0);
}

/* Of an item that is on a device, piece by piece through host memory. */
static cddp_status fill_away(const struct reader *r, const char *path, const cddp_checkpoint_item *item,
                             uint64_t offset, const struct cdi_mover *mover, struct cdi_error *err)
{
    size_t cap = item->bytes < MOVED ? item->bytes : MOVED;
    CDI_AUTOFREE uint8_t *piece = malloc(cap + 1);
    cddp_status st = piece == NULL ? cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", path) : CDDP_OK;

    for (size_t done = 0; done < item->bytes && st == CDDP_OK;) {
        size_t n = item->bytes - done < cap ? item->bytes - done : cap;

        if (!read_all(r->fd, piece, n, offset + done))
            return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be read", path);
        st = mover->ops->move(mover->b, (uint8_t *)item->data + done, piece, n, err);
        done += n;
    }
    return st;
}

static cddp_status fill_items(const struct reader *r, const char *path, const cddp_checkpoint_item *items,
                              size_t n_items, uint8_t *present, const struct cdi_mover *mover, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n_items; i++) {
        const struct entry *e = find_entry(r, items[i].name);

        present[i] = e != NULL;
        if (e == NULL && may_miss(&items[i]))
            continue;
        if (e == NULL)
            return cdi_fail(err, CDDP_E_MISMATCH, "checkpoint '%s' holds no item '%s'", path, items[i].name);
        if (e->bytes != items[i].bytes)
            return cdi_fail(err, CDDP_E_MISMATCH,
                            "checkpoint '%s': item '%s' has %" PRIu64 " bytes there and %zu in this program", path,
                            items[i].name, e->bytes, items[i].bytes);
    }
    for (size_t i = 0; i < n_items && st == CDDP_OK; i++) {
        const struct entry *e = find_entry(r, items[i].name);

        if (e != NULL && (items[i].flags & CDI_ITEM_AWAY) != 0)
            st = fill_away(r, path, &items[i], e->offset, mover, err);
        else if (e != NULL && !read_all(r->fd, items[i].data, items[i].bytes, e->offset))
            st = cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be read", path);
    }
    return st;
}

static cddp_status read_one(const char *dir, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                            uint8_t *present, const struct cdi_mover *mover, struct cdi_error *err)
{
    struct reader r = {.fd = -1};
    char path[PATH_MAX];
    cddp_status st;

    if (snprintf(path, sizeof path, "%s/" FILE_NAME, dir, step) >= (int)sizeof path)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint directory '%.200s...': the path is too long", dir);
    st = read_header(&r, path, err);
    if (st == CDDP_OK)
        st = verify_items(&r, path, err);
    if (st == CDDP_OK)
        st = fill_items(&r, path, items, n_items, present, mover, err);
    reader_release(&r);
    return st;
}

cddp_status cdi_checkpoint_read(const char *dir, const cddp_checkpoint_item *items, size_t n_items, uint8_t *present,
                                const struct cdi_mover *mover, cddp_checkpoint_info *info, struct cdi_error *err)
{
    CDI_AUTOFREE uint64_t *steps = NULL;
    cddp_checkpoint_info found = {0};
    struct cdi_error why = {.status = CDDP_OK};
    size_t n = 0;
    cddp_status st = list_steps(dir, &steps, &n, err);

    if (st != CDDP_OK)
        return st;
    if (n == 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "no checkpoint in '%s'", dir);
    for (size_t i = 0; i < n; i++) {
        st = read_one(dir, steps[i], items, n_items, present, mover, &why);
        if (st == CDDP_OK) {
            found.step = steps[i];
            *info = found;
            return CDDP_OK;
        }
        if (st != CDDP_E_IO)
            return cdi_fail_since(err, &why, "%s", why.msg);
        if (found.n_damaged++ == 0)
            (void)snprintf(found.damaged, sizeof found.damaged, "%.500s", why.msg);
    }
    return cdi_fail(err, CDDP_E_IO, "none of the %zu checkpoints in '%s' is whole; the newest: %s", n, dir,
                    found.damaged);
}
