/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of a checkpoint: its layout, which this part alone knows, and the rules for items. Writes one, and reads its
 * header. Blocks; any thread.
 * Layout, little-endian:
 *
 *     "CDDPCKPT" | u32 version | u32 n_items | u64 step | u64 header_bytes | u64 file_bytes
 *     n_items x ( u64 bytes | u64 offset | u64 crc64 of the bytes | u8 kind | u8 name_len | name )
 *     u64 crc64 of the header up to here
 *     the items' bytes, each at a multiple of 64
 *
 * An item other than memory is stored as one item with its name, or as several whose names begin with it and a dot, all
 * of its kind. A later version keeps the first line, and the checksum as the last 8 of header_bytes. A file without
 * them is damaged, and does not have another version.
 *
 * A sharded checkpoint is a folder of that name, with a file of each rank, "shard-R-of-N", and "index". A shard is such
 * a file of version 3, whose entries have, before the name, the bytes of the whole item (u64) and where these begin in
 * it (u64); it may have several of one item. The index has one item: for each rank, its file's size and the checksum of
 * its header (u64 each). The folder gets its name when all of it is on the disk.
 */
#ifndef CDI_CHECKPOINT_FILE_H
#define CDI_CHECKPOINT_FILE_H

#include "worker/backend/backend.h"

#include <inttypes.h>
#include <stdbool.h>
#include <sys/stat.h>

#define CDI_CHECKPOINT_MAX_ITEMS 10000000

/* A flag of an item, in addition to the public ones: its bytes are on the device, and are copied by a mover. */
#define CDI_ITEM_ON_DEVICE 0x80000000u

/* Where an item's bytes belong, if they are a part of it. */
struct cdi_range {
    uint64_t whole, begin; /* bytes of the item, and the first of these */
};

/* A backend with `move`, on whose device items are. Without one (NULL) all items are in host memory. */
struct cdi_mover {
    const struct cdi_backend_ops *ops;
    struct cdi_backend *b;
};

/*
 * Check an item of a program, and the list of a file, by the rules of the public header. in_pieces: those with one
 * name, by address, are pieces of one item. Return CDDP_OK, or CDDP_E_INVALID with an error message.
 */
cddp_status cdi_checkpoint_check_item(const cddp_checkpoint_item *item, size_t i, struct cdi_error *err);
cddp_status cdi_checkpoint_check_items(const cddp_checkpoint_item *items, size_t n_items, bool in_pieces,
                                       struct cdi_error *err);

/* Returns a name for messages, such as "an optimizer", of a kind in a file or a program. */
const char *cdi_checkpoint_kind_name(unsigned kind);

#define CDI_CHECKPOINT_NAME "checkpoint-%020" PRIu64 ".cddp"
#define CDI_SHARD "shard-%zu-of-%zu"
#define CDI_INDEX "index"

#define CDI_PIECE ((size_t)1 << 20)
#define CDI_MOVED ((size_t)4 << 20) /* bytes that are copied from or to a device at once */

/* --- writing */

/* What a file is to hold. */
struct cdi_content {
    uint64_t step;
    const cddp_checkpoint_item *items;
    const struct cdi_range *ranges; /* by item; NULL: they are whole */
    size_t n;
};

/* Returns the bytes of the file. */
uint64_t cdi_content_bytes(const struct cdi_content *c);
/* Writes all of a file, and does not return before it is on the disk. CDDP_OK, or an error message without its path. */
cddp_status cdi_content_write(int fd, const struct cdi_content *c, const struct cdi_mover *mover,
                              struct cdi_error *err);
/* The error of a write, from errno: the message has only the reason. Returns CDDP_E_SYSTEM. */
cddp_status cdi_not_written(struct cdi_error *err);

/* --- reading */

struct cdi_entry {
    uint64_t bytes, offset, crc;
    uint64_t whole, begin; /* of the item, and of these bytes in it */
    const char *name;      /* not terminated */
    uint32_t part;
    uint8_t kind, name_len;
};

/* The header of a file: of the only one of a checkpoint, of a shard or of an index. */
struct cdi_part {
    uint64_t step, bytes, crc; /* crc: of the header */
    uint8_t *header;
    struct cdi_entry *entries;
    uint32_t n_entries;
    bool has_ranges;
};

/* Opens a file. One that cannot be a checkpoint is CDDP_E_IO, as a damaged one is. The caller closes *fd. */
cddp_status cdi_checkpoint_open_file(int *fd, const char *path, struct stat *sb, struct cdi_error *err);
/*
 * Reads bytes of a file. If it ends before, it is damaged: CDDP_E_IO. A read that fails says nothing about the file,
 * and may succeed the next time: CDDP_E_SYSTEM.
 */
cddp_status cdi_checkpoint_read_all(int fd, const char *path, void *data, size_t len, uint64_t offset,
                                    struct cdi_error *err);
/*
 * Reads a file's header, and checks it. Any wrong bytes are CDDP_E_IO: the file is damaged. The caller releases the
 * part, also on failure.
 */
cddp_status cdi_part_read_header(struct cdi_part *p, int fd, const char *path, struct cdi_error *err);
/* The same with a path alone. */
cddp_status cdi_part_read(struct cdi_part *p, const char *path, struct cdi_error *err);
void cdi_part_release(struct cdi_part *p);

/* --- the index's bytes for a shard */

#define CDI_INDEXED 16

void cdi_index_put(uint8_t at[CDI_INDEXED], const struct cdi_part *p);
/* Returns true if they are those of this shard. */
bool cdi_index_has(const uint8_t at[CDI_INDEXED], const struct cdi_part *p);

#endif
