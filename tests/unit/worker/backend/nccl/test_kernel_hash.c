/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's kernel that hashes parameters, by its twin, against the CPU's hash. */
#include "tests/support/kernel_twin.h"

#include "hygiene.h"

CDI_SUITE(kernel_hash);

enum { N_SM = 3, ROOM = 5 * CDI_HASH_CHUNK, SLICES = 400 };

static _Alignas(64) uint8_t memory[ROOM];
static size_t n_launches;

static void fill(uint64_t seed)
{
    for (size_t i = 0; i < ROOM; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        memory[i] = (uint8_t)(seed >> 56);
    }
}

static void hash(const struct cdi_slice *x, size_t n, uint64_t *sum)
{
    n_launches = 0;
    memset(sum, 0, n * sizeof *sum);
    for (size_t at = 0; at < n;) {
        struct cdi_launch l;
        size_t took = cdi_launch_hash(&l, N_SM, x + at, n - at, at, sum);

        cr_assert(took > 0 && took <= n - at);
        cdi_launch_on_host(&l);
        at += took;
        n_launches++;
    }
}

enum { CHUNK = CDI_HASH_CHUNK };
static const size_t sizes[] = {
    0, 1, 2, 7, 8, 9, 15, 16, 17, 4095, 4104, CHUNK - 8, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 8, 3 * CHUNK + 12};

Test(kernel_hash, has_the_bits_of_the_cpu_at_every_address)
{
    fill(3);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t shift = 0; shift < 17; shift++) {
            const struct cdi_slice one = {memory + shift, sizes[s]};
            uint64_t sum;

            hash(&one, 1, &sum);
            cr_assert_eq(sum, cdi_hash64_sum(memory + shift, sizes[s], 0), "%zu bytes at %zu", sizes[s], shift);
        }
}

Test(kernel_hash, each_of_many_has_its_own)
{
    static struct cdi_slice slice[SLICES];
    static uint64_t sum[SLICES];

    fill(4);
    for (size_t i = 0; i < SLICES; i++)
        slice[i] = (struct cdi_slice){i % 9 == 4 ? NULL : memory + i * 8, i % 7 == 2 ? 0 : 1 + i * 37 % 5000};
    hash(slice, SLICES, sum);
    cr_assert_eq(n_launches, 2, "160 in each");
    for (size_t i = 0; i < SLICES; i++)
        cr_assert_eq(sum[i], slice[i].data == NULL ? 0 : cdi_hash64_sum(slice[i].data, slice[i].bytes, 0), "slice %zu",
                     i);
}

Test(kernel_hash, each_bit_counts)
{
    const struct cdi_slice one = {memory, CDI_HASH_CHUNK + 20};
    uint64_t before, after;

    fill(5);
    hash(&one, 1, &before);
    for (size_t bit = 0; bit < 8 * one.bytes; bit += 4001) {
        memory[bit / 8] ^= (uint8_t)(1u << bit % 8);
        hash(&one, 1, &after);
        cr_assert_neq(after, before, "bit %zu", bit);
        memory[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    memory[one.bytes] ^= 1;
    hash(&one, 1, &after);
    cr_assert_eq(after, before, "and none after the end");
}
