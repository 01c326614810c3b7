/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of GPU memory while the job goes on: two ranks, started by hand, save in the background, and overwrite
 * the saved memory at once, by collectives and by copies that use the same pinned blocks. The file must have the bytes
 * of the moment of the save; also if there is no room for a copy on the GPU, and if the communicator fails.
 */
#include "standin.h"
#include "tests/support/by_hand.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define BYTES (((size_t)5 << 20) + 5)
#define ROUNDS 5

static char folder[] = "/tmp/cddp-meanwhile-XXXXXX";

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 2654435761u >> 13);
}

static void fill(uint8_t *p)
{
    for (size_t i = 0; i < BYTES; i++)
        p[i] = byte_at(i);
}

static bool is_filled(const uint8_t *p)
{
    for (size_t i = 0; i < BYTES; i++)
        if (p[i] != byte_at(i))
            return false;
    return true;
}

struct job {
    cddp_comm *comm;
    void *x;
    uint8_t *host;
    cddp_checkpoint_item item;
};

static void begin(struct job *j)
{
    CHECK(cddp_init(&j->comm, NULL) == CDDP_OK);
    j->host = malloc(BYTES);
    CHECK(j->host != NULL && cddp_alloc(j->comm, BYTES, 0, &j->x) == CDDP_OK);
    fill(j->host);
    CHECK(cddp_copy(j->comm, j->x, j->host, BYTES) == CDDP_OK);
    j->item = (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item), .name = "x", .data = j->x, .bytes = BYTES};
}

static void end(struct job *j)
{
    free(j->host);
    cddp_free(j->comm, j->x);
}

static void save(struct job *j, uint64_t step, bool background)
{
    const cddp_checkpoint_options opt = {.size = sizeof opt, .background = background};

    CHECK(cddp_checkpoint_save(j->comm, folder, step, &j->item, 1, &opt) == CDDP_OK);
}

static void overwrite(struct job *j)
{
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(cddp_all_reduce(j->comm, j->x, j->x, 65536, CDDP_UINT8, CDDP_SUM) == CDDP_OK);
        memset(j->host, i, BYTES);
        CHECK(cddp_copy(j->comm, j->x, j->host, BYTES) == CDDP_OK);
        CHECK(cddp_copy(j->comm, j->host, j->x, BYTES) == CDDP_OK && j->host[BYTES - 1] == i);
    }
}

static void check_loaded(struct job *j, uint64_t step)
{
    cddp_checkpoint_info info = {.size = sizeof info};

    CHECK(cddp_checkpoint_load(j->comm, folder, &j->item, 1, &info) == CDDP_OK && info.step == step);
    CHECK(cddp_copy(j->comm, j->host, j->x, BYTES) == CDDP_OK && is_filled(j->host));
}

/* Allocations on rank 0, with one more and one less where the copy is on the GPU. */
static int save_thrice(int rank)
{
    struct job j;
    uint64_t before;

    begin(&j);
    before = standin_allocations();
    save(&j, 1, true);
    overwrite(&j);
    CHECK(cddp_checkpoint_wait(j.comm) == CDDP_OK);
    CHECK(standin_allocations() == before + (rank == 0 ? 2 : 0));
    check_loaded(&j, 1);

    (void)setenv("CDDP_STANDIN_FAIL", "cuMemAllocAsync:1+:2", 1); /* the program has filled the GPU */
    standin_configure();
    before = standin_allocations();
    save(&j, 2, true);
    overwrite(&j);
    CHECK(cddp_checkpoint_wait(j.comm) == CDDP_OK);
    check_loaded(&j, 2);
    save(&j, 3, false);
    overwrite(&j);
    check_loaded(&j, 3);
    CHECK(standin_allocations() == before);
    end(&j);
    return cddp_finalize(j.comm) != CDDP_OK;
}

/* Rank 1 gives up while rank 0 writes. */
static int save_and_fail(int rank)
{
    struct job j;
    int32_t y = 1;

    begin(&j);
    check_loaded(&j, 3);
    save(&j, 4, true);
    if (rank == 1)
        cddp_abort(j.comm, "enough");
    while (cddp_all_reduce(j.comm, &y, &y, 1, CDDP_INT32, CDDP_SUM) == CDDP_OK) {
    }
    end(&j);
    (void)cddp_finalize(j.comm); /* which waits for the save */
    return 0;
}

static int load_both(int rank)
{
    struct job j;

    (void)rank;
    begin(&j);
    check_loaded(&j, 4);
    end(&j);
    return cddp_finalize(j.comm) != CDDP_OK;
}

static void run(int (*body)(int rank))
{
    by_hand_start(free_port(), body);
    CHECK(by_hand_wait() == 0);
}

int main(void)
{
    char command[64];

    CHECK(mkdtemp(folder) != NULL);
    run(save_thrice);
    run(save_and_fail);
    run(load_both);
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) != 0; // NOLINT(cert-env33-c)
}
