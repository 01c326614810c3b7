/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that grow, from both sides: each test is a program built with one header and a library built with another.
 * `struct v1` is the first version of a struct, and v2 and v3 are later ones.
 */
#include "hygiene.h"
#include "worker/base/sized.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct v1 {
    size_t size;
    const char *name;
};

struct v2 {
    size_t size;
    const char *name;
    uint64_t count;
};

struct v3 {
    size_t size;
    const char *name;
    uint64_t count;
    double scale;
};

CDI_SUITE(sized);

Test(sized, copies_a_struct_of_the_same_size)
{
    const struct v2 said = {.size = sizeof said, .name = "a", .count = 7};
    struct v2 known;

    cr_assert_eq(cdi_sized_get(&known, sizeof known, &said, "v2", NULL), CDDP_OK);
    cr_assert_eq(memcmp(&known, &said, sizeof said), 0);
}

Test(sized, members_beyond_an_older_program_are_zero)
{
    const struct v1 said = {.size = sizeof said, .name = "a"};
    struct v3 known = {.count = 9, .scale = 9};

    cr_assert_eq(cdi_sized_get(&known, sizeof known, &said, "v3", NULL), CDDP_OK);
    cr_assert_eq(known.size, sizeof known);
    cr_assert_str_eq(known.name, "a");
    cr_assert_eq(known.count, 0);
    cr_assert(known.scale == 0);
}

Test(sized, accepts_a_newer_program_without_new_members)
{
    const struct v3 said = {.size = sizeof said, .name = "a"};
    struct v1 known[2] = {{0}, {.name = "after"}};

    cr_assert_eq(cdi_sized_get(&known[0], sizeof known[0], &said, "v1", NULL), CDDP_OK);
    cr_assert_eq(known[0].size, sizeof known[0]);
    cr_assert_str_eq(known[0].name, "a");
    cr_assert_str_eq(known[1].name, "after", "memory after the struct is not touched");
}

Test(sized, rejects_new_members_with_their_offset)
{
    const struct v3 said = {.size = sizeof said, .name = "a", .scale = 1};
    struct v1 known = {.name = "as before"};
    struct cdi_error err;

    cr_assert_eq(cdi_sized_get(&known, sizeof known, &said, "cddp_v", &err), CDDP_E_UNSUPPORTED);
    /* 1.0 is 00 00 00 00 00 00 f0 3f, and begins at 24. */
    cr_assert_str_eq(err.msg,
                     "cddp_v is not zero at offset 30, but this libcddp has only its first 16 bytes: the program was "
                     "built with a newer header, and uses a member that this version does not have");
    cr_assert_str_eq(known.name, "as before");
}

/* 0 is a size that was not set; 8 is that of a pointer, as in opt->size = sizeof opt; the others are random bytes. */
Test(sized, rejects_a_size_that_was_not_set)
{
    const size_t bad[] = {0, 8, 15, 17, 20, 4097, 4104, SIZE_MAX};
    struct v2 said = {.name = "a"}, known = {.name = "as before"};
    struct cdi_error err;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        said.size = bad[i];
        cr_assert_eq(cdi_sized_get(&known, sizeof known, &said, "cddp_v", &err), CDDP_E_INVALID, "%zu", bad[i]);
        cr_assert_eq(cdi_sized_check(&said, "cddp_v", NULL), CDDP_E_INVALID, "%zu", bad[i]);
    }
    said.size = 0;
    (void)cdi_sized_check(&said, "cddp_v", &err);
    cr_assert_str_eq(err.msg, "cddp_v.size is 0, so it is not set: write .size = sizeof(cddp_v)");
    cr_assert_eq(cdi_sized_get(&known, sizeof known, NULL, "cddp_v", &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "cddp_v is NULL");
    cr_assert_str_eq(known.name, "as before");
}

Test(sized, accepts_up_to_4096_bytes)
{
    static uint64_t said[512] = {4096};
    uint64_t known[2];
    struct cdi_error err;

    cr_assert_eq(cdi_sized_get(known, sizeof known, said, "cddp_v", &err), CDDP_OK);
    said[511] = 1;
    cr_assert_eq(cdi_sized_get(known, sizeof known, said, "cddp_v", &err), CDDP_E_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "at offset 4088,"));
}

Test(sized, the_first_size_of_an_array_is_its_stride)
{
    const struct v3 newer[] = {
        {sizeof newer[0], "a", 1, 0}, {sizeof newer[0], "b", 2, 0}, {sizeof newer[0], "c", 3, 0}};
    const struct v1 older[] = {{sizeof older[0], "a"}, {sizeof older[0], "b"}};
    struct cdi_error err;
    struct v2 *known = cdi_sized_get_list(sizeof *known, newer, 3, "cddp_v", &err);

    cr_assert_not_null(known);
    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(known[i].size, sizeof *known);
        cr_assert_str_eq(known[i].name, newer[i].name);
        cr_assert_eq(known[i].count, i + 1);
    }
    free(known);
    known = cdi_sized_get_list(sizeof *known, older, 2, "cddp_v", &err);
    cr_assert_not_null(known);
    cr_assert_str_eq(known[1].name, "b");
    cr_assert_eq(known[1].count, 0);
    free(known);
}

Test(sized, empty_array_needs_no_valid_address)
{
    struct cdi_error err;
    void *known = cdi_sized_get_list(sizeof(struct v2), NULL, 0, "cddp_v", &err);

    cr_assert_not_null(known);
    free(known);
    cr_assert_null(cdi_sized_get_list(sizeof(struct v2), NULL, 1, "cddp_v", &err));
    cr_assert_eq(err.status, CDDP_E_INVALID);
}

Test(sized, names_the_faulty_element_of_an_array)
{
    struct v3 said[] = {{sizeof said[0], "a", 1, 0}, {sizeof said[0], "b", 2, 0.5}, {0, "c", 3, 0}};
    struct cdi_error err;

    cr_assert_null(cdi_sized_get_list(sizeof(struct v2), said, 2, "cddp_v", &err));
    cr_assert_eq(err.status, CDDP_E_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "element 1: cddp_v is not zero at offset 30,"), "%s", err.msg);
    said[1].scale = 0;
    cr_assert_null(cdi_sized_get_list(sizeof(struct v2), said, 3, "cddp_v", &err));
    cr_assert_eq(err.status, CDDP_E_INVALID);
    cr_assert_str_eq(err.msg,
                     "cddp_v: size is 0 in element 2, but 32 in element 0: write .size = sizeof(cddp_v) in each");
}

Test(sized, rejects_an_impossible_array_length)
{
    const struct v2 said = {.size = sizeof said};
    struct cdi_error err;

    cr_assert_null(cdi_sized_get_list(sizeof said, &said, SIZE_MAX / sizeof said + 2, "cddp_v", &err));
    cr_assert_eq(err.status, CDDP_E_INVALID);
}

Test(sized, filling_in_keeps_the_programs_size)
{
    const struct v2 found = {.size = sizeof found, .name = "found", .count = 5};
    struct v1 older[2] = {{sizeof older[0], NULL}, {0, "after"}};
    struct v3 newer = {.size = sizeof newer, .count = 9, .scale = 9};

    cr_assert_eq(cdi_sized_check(&older[0], "cddp_v", NULL), CDDP_OK);
    cdi_sized_put(&older[0], &found, sizeof found);
    cr_assert_eq(older[0].size, sizeof older[0]);
    cr_assert_str_eq(older[0].name, "found");
    cr_assert_str_eq(older[1].name, "after");

    cdi_sized_put(&newer, &found, sizeof found);
    cr_assert_eq(newer.size, sizeof newer);
    cr_assert_eq(newer.count, 5);
    cr_assert(newer.scale == 9, "what the library does not know stays as the program has left it");
}

/* ---------------------------------------------------------------------------------------------- at random ---- */

#define MOST 96 /* bytes of a struct here */

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33) % below;
}

/* Makes a struct of any size, mostly valid, with zeros from `used` on, in memory of exactly that size. */
static unsigned char *make(uint64_t *seed, size_t n, size_t size, size_t used)
{
    unsigned char *p = malloc(n * size);

    cr_assert_not_null(p);
    for (size_t i = 0; i < n; i++) {
        memcpy(p + i * size, &size, sizeof size);
        for (size_t k = sizeof size; k < size; k++)
            p[i * size + k] = k < used ? (unsigned char)draw(seed, 256) : 0;
    }
    return p;
}

/* The contract once more, byte by byte. */
static void expect(const unsigned char *known, size_t bytes, const unsigned char *said, size_t size)
{
    size_t now;

    memcpy(&now, known, sizeof now);
    cr_assert_eq(now, bytes);
    for (size_t k = sizeof now; k < bytes; k++)
        cr_assert_eq(known[k], k < size ? said[k] : 0, "byte %zu of %zu and %zu", k, bytes, size);
}

Test(sized, copies_between_any_two_sizes)
{
    uint64_t seed = 1;

    for (int round = 0; round < 20000; round++) {
        size_t bytes = 16 + 8 * (size_t)draw(&seed, (MOST - 16) / 8 + 1),
               size = 16 + 8 * (size_t)draw(&seed, (MOST - 16) / 8 + 1);
        size_t n = 1 + draw(&seed, 4), used = 8 + draw(&seed, (uint32_t)size), at = draw(&seed, (uint32_t)n),
               first = size;
        unsigned char *said = make(&seed, n, size, used), *one = malloc(bytes), *all, *put;
        cddp_status want = CDDP_OK;
        struct cdi_error err;

        cr_assert_not_null(one);
        for (size_t k = bytes; k < size && first == size; k++)
            first = said[at * size + k] != 0 ? k : size;
        want = first < size ? CDDP_E_UNSUPPORTED : CDDP_OK;
        memset(one, 0xee, bytes);
        cr_assert_eq(cdi_sized_get(one, bytes, said + at * size, "cddp_v", &err), want);
        if (want == CDDP_OK) {
            expect(one, bytes, said + at * size, size);
        } else {
            char text[64];

            (void)snprintf(text, sizeof text, "at offset %zu,", first);
            cr_assert_not_null(strstr(err.msg, text), "%s", err.msg);
            for (size_t k = 0; k < bytes; k++)
                cr_assert_eq(one[k], 0xee);
        }
        all = cdi_sized_get_list(bytes, said, n, "cddp_v", &err);
        for (size_t i = 0; i < n && all != NULL; i++)
            expect(all + i * bytes, bytes, said + i * size, size);
        if (all == NULL)
            cr_assert_eq(err.status, CDDP_E_UNSUPPORTED);
        if (want != CDDP_OK)
            cr_assert_null(all);
        put = make(&seed, 1, bytes, bytes);
        cdi_sized_put(said, put, bytes);
        for (size_t k = sizeof size; k < size && k < bytes; k++)
            cr_assert_eq(said[k], put[k]);
        memcpy(&first, said, sizeof first);
        cr_assert_eq(first, size);
        free(put);
        free(all);
        free(one);
        free(said);
    }
}

/* With any bytes as the size, no byte beyond a valid size is read: the memory has 16. */
Test(sized, rejects_random_sizes)
{
    uint64_t seed = 2, legal = 0;

    for (int round = 0; round < 20000; round++) {
        unsigned char *said = malloc(16), known[16];
        size_t size =
            draw(&seed, 3) == 0 ? (size_t)draw(&seed, 5000) : (size_t)draw(&seed, UINT32_MAX) << draw(&seed, 33);
        bool ok = size == 16 || (size > 16 && size <= 4096 && size % 8 == 0);

        cr_assert_not_null(said);
        memset(said, 0, 16);
        memcpy(said, &size, sizeof size);
        if (!ok || size == 16)
            cr_assert_eq(cdi_sized_get(known, sizeof known, said, "cddp_v", NULL), ok ? CDDP_OK : CDDP_E_INVALID, "%zu",
                         size);
        legal += ok;
        free(said);
    }
    cr_assert_gt(legal, 0);
}
