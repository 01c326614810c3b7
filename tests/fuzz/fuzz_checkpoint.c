/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint files. The first byte of the input decides whether the rest is the file as it is, or has its magic, its
 * sizes and its checksums made right first, so that the fuzzer comes past them (1). It also decides whether the file is
 * a checkpoint, or the only shard of one with a right index (2). An item of a file that was opened fits and is read as
 * the file's index says.
 */
#include "common/crc64.h"
#include "worker/checkpoint/read.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXED 40u
#define ENTRY 26u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[] = "/tmp/fuzz_checkpoint.XXXXXX", path[80], shard[96], index_path[96];

static void remove_checkpoint(void)
{
    (void)unlink(shard);
    (void)unlink(index_path);
    (void)rmdir(path);
    (void)unlink(path);
}

static void remove_folder(void)
{
    remove_checkpoint();
    (void)rmdir(dir);
}

static void make_folder(void)
{
    if (mkdtemp(dir) == NULL)
        abort();
    (void)snprintf(path, sizeof path, "%s/checkpoint-%020d.cddp", dir, 7);
    (void)snprintf(shard, sizeof shard, "%s/shard-0-of-1", path);
    (void)snprintf(index_path, sizeof index_path, "%s/index", path);
    (void)atexit(remove_folder);
}

static void put64(uint8_t *to, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get64(const uint8_t *from)
{
    uint64_t v = 0;

    for (int i = 8; i-- > 0;)
        v = v << 8 | from[i];
    return v;
}

/* The version stays what it is. */
static void make_right(uint8_t *file, uint64_t size)
{
    uint64_t header, at = FIXED, entry;

    if (size < FIXED + 8)
        return;
    memcpy(file, "CDDPCKPT", 8);
    put64(file + 32, size);
    header = get64(file + 24);
    if (header < FIXED + 8 || header > size)
        return;
    entry = ENTRY + (file[8] == 3 ? 16 : 0);
    for (uint32_t i = 0; i < file[12] && at + entry <= header - 8; i++, at += entry + file[at + 25]) {
        uint64_t bytes = get64(file + at), offset = get64(file + at + 8);

        if (offset <= size && bytes <= size - offset)
            put64(file + at + 16, cdi_crc64(0, file + offset, bytes));
    }
    put64(file + header - 8, cdi_crc64(0, file, header - 8));
}

static void write_file(const char *name, const uint8_t *bytes, size_t size)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size || close(fd) != 0)
        abort();
}

/* Writes an index of step 7 for this shard. */
static void write_index(const uint8_t *file, size_t size)
{
    uint8_t index[128] = "CDDPCKPT";
    uint64_t header = size < FIXED ? 0 : get64(file + 24);

    index[8] = 2;
    index[12] = 1;
    put64(index + 16, 7);
    put64(index + 24, FIXED + ENTRY + 1 + 8);
    put64(index + FIXED, 16);
    put64(index + FIXED + 8, 112);
    index[FIXED + 25] = 1;
    index[FIXED + 26] = 's';
    put64(index + 112, size);
    put64(index + 120, header >= 8 && header <= size ? get64(file + header - 8) : 0);
    make_right(index, sizeof index);
    write_file(index_path, index, sizeof index);
}

static void read_item(struct cdi_checkpoint_file *f, const char *name)
{
    cddp_checkpoint_item item = {.name = name};
    struct cdi_error err;
    int kind = CDDP_ITEM_MEMORY;

    while (kind <= CDDP_ITEM_FSDP && !cdi_checkpoint_find(f, name, kind, &item.bytes))
        kind++;
    if (kind > CDDP_ITEM_FSDP)
        return;
    item.data = malloc(item.bytes);
    for (kind = CDDP_ITEM_MEMORY; kind <= CDDP_ITEM_FSDP; kind++) {
        uint8_t present = 0;

        item.kind = kind;
        if (cdi_checkpoint_fit(f, &item, NULL, 1, &present, &err) == CDDP_OK &&
            (present != 1 || cdi_checkpoint_fill(f, &item, NULL, 1, NULL, &err) != CDDP_OK))
            abort();
    }
    free(item.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"w", "bias", "optim.m", "sampler", "rng[0]", ""};
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_checkpoint_file *f = NULL;
    struct cdi_error err;
    uint8_t *file;

    if (path[0] == '\0')
        make_folder();
    if (size < 1 || (file = malloc(size)) == NULL)
        return 0;
    memcpy(file, data + 1, size - 1);
    if ((data[0] & 1) != 0)
        make_right(file, size - 1);
    remove_checkpoint();
    if ((data[0] & 2) != 0) {
        if (mkdir(path, 0700) != 0)
            abort();
        write_index(file, size - 1);
    }
    write_file((data[0] & 2) != 0 ? shard : path, file, size - 1);
    free(file);
    if (cdi_checkpoint_open(&f, dir, &info, &err) != CDDP_OK)
        return 0;
    if (info.step != 7)
        abort();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        read_item(f, names[i]);
    cdi_checkpoint_close(f);
    return 0;
}
