/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint files. The first byte of the input decides whether the rest is the file as it is, or has its magic, its
 * sizes and its checksums made right first, so that the fuzzer comes past them. An item of a file that was opened
 * fits and is read as the file's index says.
 */
#include "common/crc64.h"
#include "worker/checkpoint/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXED 40u
#define ENTRY 26u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[] = "/tmp/fuzz_checkpoint.XXXXXX", path[64];

static void remove_folder(void)
{
    (void)unlink(path);
    (void)rmdir(dir);
}

static void make_folder(void)
{
    if (mkdtemp(dir) == NULL)
        abort();
    (void)snprintf(path, sizeof path, "%s/checkpoint-%020d.cddp", dir, 7);
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
    uint64_t header, at = FIXED;

    if (size < FIXED + 8)
        return;
    memcpy(file, "CDDPCKPT", 8);
    put64(file + 32, size);
    header = get64(file + 24);
    if (header < FIXED + 8 || header > size)
        return;
    for (uint32_t i = 0; i < file[12] && at + ENTRY <= header - 8; i++, at += ENTRY + file[at + 25]) {
        uint64_t bytes = get64(file + at), offset = get64(file + at + 8);

        if (offset <= size && bytes <= size - offset)
            put64(file + at + 16, cdi_crc64(0, file + offset, bytes));
    }
    put64(file + header - 8, cdi_crc64(0, file, header - 8));
}

static void write_file(const uint8_t *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size || close(fd) != 0)
        abort();
}

static void read_item(struct cdi_checkpoint_file *f, const char *name)
{
    cddp_checkpoint_item item = {.name = name};
    struct cdi_error err;

    if (!cdi_checkpoint_find(f, name, &item.bytes))
        return;
    item.data = malloc(item.bytes);
    for (int kind = CDDP_ITEM_MEMORY; kind <= CDDP_ITEM_DDP; kind++) {
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
    write_file(file, size - 1);
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
