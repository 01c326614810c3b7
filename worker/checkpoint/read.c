/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/read.h"

#include "common/cleanup.h"
#include "common/crc64.h"
#include "common/map.h"
#include "worker/checkpoint/owned.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* An item: its pieces, in their order. */
struct stored {
    const struct cdi_entry **piece;
    size_t n;
};

struct cdi_checkpoint_file {
    int fd; /* of part fd_of; -1: none is open */
    size_t fd_of;
    char path[PATH_MAX];
    uint64_t step;
    struct cdi_part *parts;
    size_t n_parts;
    bool is_sharded;
    bool is_first;                   /* it is rank 0's, or that of a process alone */
    const struct cdi_entry **pieces; /* of all parts, by item */
    struct stored *items;
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
    for (size_t k = 0; k < f->n_parts; k++)
        cdi_part_release(&f->parts[k]);
    free(f->parts);
    free(f->pieces);
    free(f->items);
    free(f->steps);
    free(f);
}

/* --- the shards of a folder */

#define PATH_BYTES (PATH_MAX + 64)

/* Writes the path of part k. */
static void part_path(const struct cdi_checkpoint_file *f, size_t k, char path[PATH_BYTES])
{
    if (f->is_sharded)
        (void)snprintf(path, PATH_BYTES, "%s/" CDI_SHARD, f->path, k, f->n_parts);
    else
        (void)snprintf(path, PATH_BYTES, "%s", f->path);
}

/*
 * Opens a file of it. One that is missing on another rank than rank 0 is not damaged: where it is missing there, too,
 * rank 0's error counts.
 */
static cddp_status open_here(const struct cdi_checkpoint_file *f, int *fd, const char *path, struct stat *sb,
                             struct cdi_error *err)
{
    cddp_status st = cdi_checkpoint_open_file(fd, path, sb, err);

    return st == CDDP_OK || f->is_first || access(path, F_OK) == 0 || errno != ENOENT
               ? st
               : cdi_fail(err, CDDP_E_SYSTEM,
                          "checkpoint '%s', which rank 0 finds, is not here: all ranks read it, so they need a "
                          "directory that they share",
                          path);
}

/* Reads the shards' headers, and compares them with the index. */
static cddp_status read_shards(struct cdi_checkpoint_file *f, const uint8_t *index, struct cdi_error *err)
{
    for (size_t k = 0; k < f->n_parts; k++) {
        struct cdi_part *p = &f->parts[k];
        CDI_AUTOCLOSE int fd = -1;
        char path[PATH_BYTES];
        struct stat sb;

        part_path(f, k, path);
        if (f->is_first && access(path, F_OK) != 0 && errno == ENOENT)
            return cdi_fail(err, CDDP_E_IO,
                            "checkpoint '%s' is damaged: the file of rank %zu, '" CDI_SHARD "', is missing", f->path, k,
                            k, f->n_parts);
        if (open_here(f, &fd, path, &sb, err) != CDDP_OK || cdi_part_read_header(p, fd, path, err) != CDDP_OK)
            return err->status;
        if (!cdi_index_has(index + CDI_INDEXED * k, p) || p->step != f->step || !p->has_ranges)
            return cdi_fail(err, CDDP_E_IO,
                            "checkpoint '%s' is damaged: the file of rank %zu, '" CDI_SHARD
                            "', is of another checkpoint",
                            f->path, k, k, f->n_parts);
    }
    return CDDP_OK;
}

static cddp_status open_shards(struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    char path[PATH_BYTES];
    CDI_AUTOFREE uint8_t *index = NULL;
    CDI_AUTOCLOSE int fd = -1;
    struct cdi_part head = {0};
    struct stat sb;
    cddp_status st;

    f->is_sharded = true;
    (void)snprintf(path, sizeof path, "%s/" CDI_INDEX, f->path);
    st = open_here(f, &fd, path, &sb, err);
    if (st == CDDP_OK)
        st = cdi_part_read_header(&head, fd, path, err);
    if (st == CDDP_OK && (head.n_entries != 1 || head.entries[0].bytes == 0 ||
                          head.entries[0].bytes % CDI_INDEXED != 0 || head.step != f->step))
        st = cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: it is not an index of step %" PRIu64, path, f->step);
    if (st == CDDP_OK) {
        size_t bytes = (size_t)head.entries[0].bytes, n = bytes / CDI_INDEXED;

        index = malloc(bytes);
        f->parts = calloc(n, sizeof *f->parts);
        f->n_parts = f->parts != NULL ? n : 0;
        if (index == NULL || f->parts == NULL)
            st = cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", path);
        else
            st = cdi_checkpoint_read_all(fd, path, index, bytes, head.entries[0].offset, err);
        if (st == CDDP_OK && cdi_crc64(0, index, bytes) != head.entries[0].crc)
            st = cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: its checksum is wrong", path);
    }
    cdi_part_release(&head);
    return st == CDDP_OK ? read_shards(f, index, err) : st;
}

/* --- items, which may have pieces in several parts */

static int by_place(const void *a, const void *b)
{
    const struct cdi_entry *x = *(const struct cdi_entry *const *)a, *y = *(const struct cdi_entry *const *)b;
    size_t len = x->name_len < y->name_len ? x->name_len : y->name_len;
    int order = memcmp(x->name, y->name, len);

    if (order != 0 || x->name_len != y->name_len)
        return order != 0 ? order : (int)x->name_len - (int)y->name_len;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* an empty piece comes first */
}

static bool is_same_item(const struct cdi_entry *a, const struct cdi_entry *b)
{
    return a->name_len == b->name_len && memcmp(a->name, b->name, a->name_len) == 0;
}

/* Checks that the pieces of an item, in their order, are all of it. */
static cddp_status check_pieces(const struct cdi_checkpoint_file *f, const struct stored *s, struct cdi_error *err)
{
    const struct cdi_entry *first = s->piece[0];
    uint64_t end = 0;
    size_t i = 0;

    for (; i < s->n; i++) {
        const struct cdi_entry *e = s->piece[i];

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
        const struct cdi_entry *e = f->pieces[i];

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
        if (open_here(f, &f->fd, path, &sb, err) != CDDP_OK)
            return err->status;
    }
    return cdi_checkpoint_read_all(f->fd, path, data, len, offset, err);
}

static cddp_status verify_piece(struct cdi_checkpoint_file *f, const struct cdi_entry *e, uint8_t *buffer,
                                struct cdi_error *err)
{
    char path[PATH_BYTES];
    uint64_t crc = 0;

    for (uint64_t done = 0; done < e->bytes;) {
        size_t n = e->bytes - done < CDI_PIECE ? (size_t)(e->bytes - done) : CDI_PIECE;

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
    CDI_AUTOFREE uint8_t *buffer = malloc(CDI_PIECE);
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
    size_t cap = bytes < CDI_MOVED ? bytes : CDI_MOVED;
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

bool cdi_checkpoint_find(const struct cdi_checkpoint_file *f, const char *name, cddp_item_kind kind, size_t *bytes)
{
    const struct stored *s = find_item(f, name);

    if (s == NULL || s->piece[0]->kind != kind)
        return false;
    if (bytes != NULL)
        *bytes = s->piece[0]->whole;
    return true;
}

cddp_status cdi_checkpoint_fit(const struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items,
                               const struct cdi_range *ranges, size_t n_items, uint8_t *present, struct cdi_error *err)
{
    for (size_t i = 0; i < n_items; i++) {
        const struct stored *s = find_item(f, items[i].name);
        const struct cdi_entry *e = s == NULL ? NULL : s->piece[0];
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
        const struct cdi_entry *e = s->piece[lo];
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
    f->is_first = mine == 0;
    if (snprintf(f->path, sizeof f->path, "%s/" CDI_CHECKPOINT_NAME, dir, step) >= (int)sizeof f->path)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint directory '%.200s...': the path is too long", dir);
    if (open_here(f, &f->fd, f->path, &sb, err) != CDDP_OK)
        return err->status;
    if (S_ISDIR(sb.st_mode)) {
        (void)close(f->fd);
        f->fd = -1;
        st = open_shards(f, err);
    } else {
        f->parts = calloc(1, sizeof *f->parts);
        f->n_parts = f->parts != NULL;
        st = f->parts == NULL ? cdi_fail(err, CDDP_E_NOMEM, "checkpoint '%s': out of memory", f->path)
                              : cdi_part_read_header(f->parts, f->fd, f->path, err);
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

uint64_t cdi_checkpoint_id(const struct cdi_checkpoint_file *f)
{
    uint64_t id = 0;

    for (size_t k = 0; k < f->n_parts; k++)
        id = cdi_crc64(id, &f->parts[k].crc, sizeof f->parts[k].crc);
    return id;
}

bool cdi_checkpoint_is_sharded(const char *dir, uint64_t step)
{
    char path[PATH_MAX];
    struct stat sb;

    return snprintf(path, sizeof path, "%s/" CDI_CHECKPOINT_NAME, dir, step) < (int)sizeof path &&
           stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

/* ------------------------------------------------------------------------------------------- the newest one ---- */

static bool parse_file_name(const char *name, uint64_t *step)
{
    char again[64];

    if (sscanf(name, "checkpoint-%20" SCNu64, step) != 1)
        return false;
    (void)snprintf(again, sizeof again, CDI_CHECKPOINT_NAME, *step);
    return strcmp(again, name) == 0;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

cddp_status cdi_checkpoint_steps(const char *dir, uint64_t **steps, size_t *n, struct cdi_error *err)
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

cddp_status cdi_search_begin(struct cdi_search *s, const char *dir, struct cdi_error *err)
{
    cddp_status st;

    *s = (struct cdi_search){.dir = dir, .info = {.size = sizeof s->info}};
    st = cdi_checkpoint_steps(dir, &s->steps, &s->n, err);
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
