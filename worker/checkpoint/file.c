/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/file.h"

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/crc64.h"
#include "common/map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

const char *cdi_checkpoint_kind_name(unsigned kind)
{
    static const char *const names[] = {[CDDP_ITEM_MEMORY] = "memory",
                                        [CDDP_ITEM_SAMPLER] = "a sampler",
                                        [CDDP_ITEM_OPTIM] = "an optimizer",
                                        [CDDP_ITEM_DDP] = "a reducer",
                                        [CDDP_ITEM_FSDP] = "a sharded model"};

    return kind < sizeof names / sizeof names[0] ? names[kind] : "something unknown";
}

static uint64_t file_align(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* --------------------------------------------------------------------------------------------------- writing ---- */

static uint64_t header_bytes_of(const struct cdi_content *c)
{
    uint64_t bytes = FIXED_BYTES + 8;

    for (size_t i = 0; i < c->n; i++)
        bytes += ENTRY_BYTES + (c->ranges != NULL ? RANGE_BYTES : 0) + strlen(c->items[i].name);
    return bytes;
}

uint64_t cdi_content_bytes(const struct cdi_content *c)
{
    uint64_t bytes = file_align(header_bytes_of(c));

    for (size_t i = 0; i < c->n; i++)
        bytes = file_align(bytes + c->items[i].bytes);
    return bytes;
}

static cddp_status make_header(struct cdi_buf *b, const struct cdi_content *c, const uint64_t *crc)
{
    const cddp_checkpoint_item *items = c->items;
    uint64_t header_bytes = header_bytes_of(c), offset;

    (void)cdi_buf_append(b, MAGIC, 8);
    (void)cdi_buf_put_u32(b, c->ranges != NULL ? VERSION_SHARD : VERSION);
    (void)cdi_buf_put_u32(b, (uint32_t)c->n);
    (void)cdi_buf_put_u64(b, c->step);
    (void)cdi_buf_put_u64(b, header_bytes);
    (void)cdi_buf_put_u64(b, cdi_content_bytes(c));
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

cddp_status cdi_not_written(struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_SYSTEM, "%s", strerror(errno));
}

/* Writes an item piece by piece, which the cache still has after its checksum; from a device through host memory. */
static cddp_status write_item(int fd, const cddp_checkpoint_item *item, uint64_t offset, const struct cdi_mover *mover,
                              uint64_t *crc, struct cdi_error *err)
{
    bool is_away = (item->flags & CDI_ITEM_ON_DEVICE) != 0;
    size_t most = is_away ? CDI_MOVED : CDI_PIECE, cap = item->bytes < most ? item->bytes : most;
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
            return cdi_not_written(err);
        done += n;
    }
    return CDDP_OK;
}

/* Writes the items first, since the header has their checksums. */
cddp_status cdi_content_write(int fd, const struct cdi_content *c, const struct cdi_mover *mover, struct cdi_error *err)
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
             ftruncate(fd, (off_t)cdi_content_bytes(c)) != 0 || fsync(fd) != 0)
        st = cdi_not_written(err);
    cdi_buf_release(&header);
    return st;
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

void cdi_part_release(struct cdi_part *p)
{
    free(p->header);
    free(p->entries);
    *p = (struct cdi_part){0};
}

cddp_status cdi_checkpoint_read_all(int fd, const char *path, void *data, size_t len, uint64_t offset,
                                    struct cdi_error *err)
{
    uint8_t *p = data;

    while (len > 0) {
        ssize_t n = pread(fd, p, len > (size_t)1 << 30 ? (size_t)1 << 30 : len, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cdi_fail_errno(err, errno, "checkpoint '%s' cannot be read", path);
        if (n == 0)
            return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is damaged: it was cut short", path);
        p += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return CDDP_OK;
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
static bool parse_entries(struct cdi_part *p, uint64_t header_bytes)
{
    const uint8_t *at = p->header + FIXED_BYTES, *end = p->header + header_bytes - 8;
    ptrdiff_t size = ENTRY_BYTES + (p->has_ranges ? RANGE_BYTES : 0);

    for (uint32_t i = 0; i < p->n_entries; i++) {
        struct cdi_entry *e = &p->entries[i];

        if (end - at < size)
            return false;
        *e = (struct cdi_entry){.bytes = get_uint(at, 8),
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
cddp_status cdi_checkpoint_open_file(int *fd, const char *path, struct stat *sb, struct cdi_error *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would block */
    if (*fd < 0 && (errno == ENOENT || errno == ELOOP || errno == ENXIO))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' cannot be opened: %s", path, strerror(errno));
    if (*fd < 0 || fstat(*fd, sb) != 0)
        return cdi_fail_errno(err, errno, "checkpoint '%s'", path);
    return CDDP_OK;
}

cddp_status cdi_part_read_header(struct cdi_part *p, int fd, const char *path, struct cdi_error *err)
{
    uint8_t fixed[FIXED_BYTES];
    struct stat sb;
    uint64_t header_bytes, version;

    if (fstat(fd, &sb) != 0)
        return cdi_fail_errno(err, errno, "checkpoint '%s'", path);
    if (!S_ISREG(sb.st_mode))
        return cdi_fail(err, CDDP_E_IO, "checkpoint '%s' is not a file", path);
    if (sb.st_size >= (off_t)sizeof fixed && cdi_checkpoint_read_all(fd, path, fixed, sizeof fixed, 0, err) != CDDP_OK)
        return err->status;
    if (sb.st_size < (off_t)sizeof fixed || memcmp(fixed, MAGIC, 8) != 0)
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
    if (cdi_checkpoint_read_all(fd, path, p->header, header_bytes, 0, err) != CDDP_OK)
        return err->status;
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

cddp_status cdi_part_read(struct cdi_part *p, const char *path, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = -1;
    struct stat sb;

    if (cdi_checkpoint_open_file(&fd, path, &sb, err) != CDDP_OK)
        return err->status;
    return cdi_part_read_header(p, fd, path, err);
}

void cdi_index_put(uint8_t at[CDI_INDEXED], const struct cdi_part *p)
{
    for (int i = 0; i < 8; i++) {
        at[i] = (uint8_t)(p->bytes >> 8 * i);
        at[8 + i] = (uint8_t)(p->crc >> 8 * i);
    }
}

bool cdi_index_has(const uint8_t at[CDI_INDEXED], const struct cdi_part *p)
{
    return get_uint(at, 8) == p->bytes && get_uint(at + 8, 8) == p->crc;
}
