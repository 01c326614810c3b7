/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "sha256.h"
#include "worker/data/sampler.h"

#include <cddp/cddp.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

CDI_SUITE(sampler);

/* The words of a cddp_sampler_state. */
enum { FORMAT, EPOCH, TAKEN, SAMPLES, SEED, NO_SHUFFLE };

#define FORMAT_1 UINT64_C(0x014d415350444443)

static json_t *vectors(const char *what, json_t **all)
{
    *all = json_load_file(CDI_TEST_DATA "/sampler_vectors.json", JSON_DECODE_INT_AS_REAL, NULL);
    cr_assert_not_null(*all);
    return json_object_get(*all, what);
}

static int64_t number(const json_t *o, const char *key)
{
    return (int64_t)json_real_value(json_object_get(o, key));
}

/* Compares indices with the record: the hash of all of them (x86 and ARM are little-endian, as the hash requires). */
static void expect_indices(const json_t *want, const int64_t *got, size_t n, size_t which)
{
    char hex[65];
    json_t *full = json_object_get(want, "full");

    for (size_t i = 0; full != NULL && i < n; i++)
        cr_assert_eq(got[i], (int64_t)json_real_value(json_array_get(full, i)), "case %zu, index %zu", which, i);
    sha256_hex(got, n * sizeof *got, hex);
    cr_assert_str_eq(hex, json_string_value(json_object_get(want, "sha256")), "case %zu", which);
}

Test(sampler, randperm_matches_torch)
{
    json_t *all, *one, *cases = vectors("randperm", &all);
    size_t i, n = 0;

    json_array_foreach(cases, i, one)
    {
        int64_t len = number(one, "n");
        int64_t *got = malloc((size_t)len * sizeof *got + 1);

        cdi_randperm(got, len, (uint64_t)number(one, "seed"));
        expect_indices(one, got, (size_t)len, i);
        free(got);
        n++;
    }
    cr_assert_eq(n, 88);
    json_decref(all);
}

/*
 * The first 16 elements of torch.randperm(214748364) with seed 42: the smallest n that takes the wide form. Only the
 * values that end up among the first 16 are kept, so that no gigabyte is needed.
 */
Test(sampler, wide_randperm_matches_torch)
{
    static const int64_t want[16] = {85514504,  93417259,  199404010, 60269803,  87481865,  115296688,
                                     108395808, 23093201,  158378717, 112985720, 193977258, 201236404,
                                     33582089,  190253015, 141158583, 119764418};
    int64_t head[16];
    struct cdi_mt19937 g;

    cdi_mt19937_seed(&g, 42);
    for (uint64_t i = 0; i < CDI_RANDPERM_WIDE; i++) {
        uint64_t place = cdi_randperm_wide_place(&g, i);

        if (i < 16)
            head[i] = (int64_t)i, head[i] = head[place];
        if (place < 16)
            head[place] = (int64_t)i;
    }
    for (int i = 0; i < 16; i++)
        cr_assert_eq(head[i], want[i], "element %d is %" PRId64, i, head[i]);
}

Test(sampler, matches_distributed_sampler)
{
    json_t *all, *one, *cases = vectors("sampler", &all);
    size_t i, n = 0;

    json_array_foreach(cases, i, one)
    {
        cddp_sampler_options opt = {
            .size = sizeof opt,
            .n = number(one, "n"),
            .world_size = (int)number(one, "world"),
            .rank = (int)number(one, "rank"),
            .no_shuffle = json_is_false(json_object_get(one, "shuffle")),
            .drop_last = json_is_true(json_object_get(one, "drop_last")),
            .seed = number(one, "seed"),
        };
        cddp_sampler *s;

        cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_OK);
        cr_assert_eq(cddp_sampler_set_epoch(s, number(one, "epoch")), CDDP_OK);
        cr_assert_eq(cddp_sampler_count(s), (size_t)number(one, "n_indices"), "case %zu", i);
        expect_indices(one, cddp_sampler_indices(s), cddp_sampler_count(s), i);
        cddp_sampler_destroy(s);
        n++;
    }
    cr_assert_eq(n, 600);
    json_decref(all);
}

static cddp_sampler *sampler_of(const json_t *one, int world_size, int rank)
{
    cddp_sampler_options opt = {
        .size = sizeof opt,
        .n = number(one, "n"),
        .world_size = world_size,
        .rank = rank,
        .no_shuffle = json_is_false(json_object_get(one, "shuffle")),
        .drop_last = json_is_true(json_object_get(one, "drop_last")),
        .seed = number(one, "seed"),
    };
    cddp_sampler *s;

    cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_OK, "%s", cddp_last_error());
    return s;
}

/* A fresh sampler resumed at any position gives the remaining indices of torch, batch by batch. */
Test(sampler, resumes_within_epoch)
{
    json_t *all, *one, *cases = vectors("sampler", &all);
    size_t i, n_resumed = 0;

    json_array_foreach(cases, i, one)
    {
        const json_t *full = json_object_get(one, "full");
        int world = (int)number(one, "world"), rank = (int)number(one, "rank");

        for (size_t stop = 0; full != NULL && stop <= json_array_size(full); stop += 1 + json_array_size(full) / 5) {
            cddp_sampler *before = sampler_of(one, world, rank), *after = sampler_of(one, world, rank);
            cddp_sampler_state state;
            const int64_t *batch;
            size_t at = stop, n;

            cr_assert_eq(cddp_sampler_set_epoch(before, number(one, "epoch")), CDDP_OK);
            cr_assert_eq(cddp_sampler_next(before, stop, &batch), stop);
            cddp_sampler_get_state(before, &state);
            cr_assert_eq(cddp_sampler_set_state(after, &state), CDDP_OK, "%s", cddp_last_error());
            cr_assert_eq(cddp_sampler_epoch(before), number(one, "epoch"));
            cr_assert_eq(cddp_sampler_epoch(after), number(one, "epoch"));
            cr_assert_eq(cddp_sampler_count(after), json_array_size(full) - stop, "case %zu, from %zu", i, stop);
            while ((n = cddp_sampler_next(after, 7, &batch)) > 0)
                for (size_t k = 0; k < n; k++, at++)
                    cr_assert_eq(batch[k], (int64_t)json_real_value(json_array_get(full, at)), "case %zu, index %zu", i,
                                 at);
            cr_assert_eq(at, json_array_size(full), "case %zu, from %zu", i, stop);
            /* The next epoch is a whole one, and the position is known from then on. */
            cddp_sampler_get_state(after, &state);
            cr_assert_eq(state.words[TAKEN], json_array_size(full) * (size_t)world);
            cr_assert_eq(cddp_sampler_set_epoch(after, number(one, "epoch") + 1), CDDP_OK);
            cr_assert_eq(cddp_sampler_count(after), json_array_size(full));
            cddp_sampler_destroy(before);
            cddp_sampler_destroy(after);
            n_resumed++;
        }
    }
    cr_assert_gt(n_resumed, 1000);
    json_decref(all);
}

/*
 * The indices of one rank in torch's order: `world` ranks take turns from position `taken` on, and start again at the
 * end.
 */
static void expect_shares(const json_t *one, const json_t *order, int64_t taken, int world)
{
    int64_t n = (int64_t)json_array_size(order), rest = n - taken < 0 ? 0 : n - taken;
    bool drop = json_is_true(json_object_get(one, "drop_last"));
    const cddp_sampler_state state = {{[FORMAT] = FORMAT_1,
                                       [EPOCH] = (uint64_t)number(one, "epoch"),
                                       [TAKEN] = (uint64_t)taken,
                                       [SAMPLES] = (uint64_t)n,
                                       [SEED] = (uint64_t)number(one, "seed"),
                                       [NO_SHUFFLE] = json_is_false(json_object_get(one, "shuffle"))}};

    for (int rank = 0; rank < world; rank++) {
        cddp_sampler *s = sampler_of(one, world, rank);

        cr_assert_eq(cddp_sampler_set_state(s, &state), CDDP_OK, "%s", cddp_last_error());
        cr_assert_eq(cddp_sampler_count(s), (size_t)(drop ? rest / world : (rest + world - 1) / world));
        for (size_t k = 0; k < cddp_sampler_count(s); k++) {
            size_t at = (size_t)((taken + rank + (int64_t)k * world) % n);

            cr_assert_eq(cddp_sampler_indices(s)[k], (int64_t)json_real_value(json_array_get(order, at)));
        }
        cddp_sampler_destroy(s);
    }
}

Test(sampler, resumes_with_other_world_size)
{
    json_t *all, *one, *cases = vectors("sampler", &all);
    size_t i, n = 0;

    json_array_foreach(cases, i, one)
    {
        const json_t *order = json_object_get(one, "full");

        if (number(one, "world") != 1 || order == NULL || json_array_size(order) == 0)
            continue;
        for (int world = 1; world <= 5; world++)
            for (int64_t taken = 0; taken <= (int64_t)json_array_size(order) + 2; taken += 3, n++)
                expect_shares(one, order, taken, world);
    }
    cr_assert_gt(n, 100);
    json_decref(all);
}

Test(sampler, rejects_position_in_other_order)
{
    const cddp_sampler_options opt = {.size = sizeof opt, .n = 10, .world_size = 2, .seed = 5};
    cddp_sampler_state good, bad[8];
    const int64_t *batch;
    cddp_sampler *s;

    cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_OK);
    cr_assert_eq(cddp_sampler_set_epoch(s, 3), CDDP_OK);
    cr_assert_eq(cddp_sampler_next(s, 2, &batch), 2);
    cddp_sampler_get_state(s, &good);
    for (size_t i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].words[SAMPLES] = 11;
    bad[1].words[SEED] = 6;
    bad[2].words[NO_SHUFFLE] = 1;
    bad[3].words[FORMAT] += UINT64_C(1) << 56; /* the next version */
    bad[4].words[TAKEN] = UINT64_MAX;
    bad[5].words[EPOCH] = UINT64_MAX;
    bad[6].words[7] = 1;
    bad[7].words[NO_SHUFFLE] = 2;
    for (size_t i = 0; i < 8; i++)
        cr_assert_eq(cddp_sampler_set_state(s, &bad[i]), i < 3 ? CDDP_E_MISMATCH : CDDP_E_INVALID, "case %zu", i);
    cr_assert_eq(cddp_sampler_set_state(s, NULL), CDDP_E_INVALID);
    cddp_sampler_get_state(s, &bad[0]);
    cr_assert_eq(memcmp(&bad[0], &good, sizeof good), 0);
    bad[1].words[TAKEN] = 0; /* an epoch that has not started may have another order */
    cr_assert_eq(cddp_sampler_set_state(s, &bad[1]), CDDP_OK);
    cddp_sampler_destroy(s);
}

/* Byte by byte, so that a checkpoint of one machine can be loaded on any other. */
Test(sampler, state_bytes_are_portable)
{
    static const unsigned char want[64] = {'C',  'D',  'D',      'P',         'S',  'A',         'M',
                                           1,    3,    [16] = 4, [24] = 0x0a, 1,    [32] = 0xfb, 0xff,
                                           0xff, 0xff, 0xff,     0xff,        0xff, 0xff,        [40] = 1};
    const cddp_sampler_options opt = {.size = sizeof opt, .n = 266, .world_size = 2, .seed = -5, .no_shuffle = 1};
    cddp_sampler_state state;
    const int64_t *batch;
    cddp_sampler *s;

    cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_OK);
    cr_assert_eq(cddp_sampler_set_epoch(s, 3), CDDP_OK);
    cr_assert_eq(cddp_sampler_next(s, 2, &batch), 2);
    cddp_sampler_get_state(s, &state);
    cr_assert_eq(sizeof state, sizeof want);
    cr_assert_eq(memcmp(&state, want, sizeof want), 0);
    memcpy(&state, want, sizeof want);
    cr_assert_eq(cddp_sampler_set_state(s, &state), CDDP_OK);
    cddp_sampler_destroy(s);
}

Test(sampler, accepts_null_sampler)
{
    const cddp_sampler_options opt = {.size = sizeof opt, .n = 3, .world_size = 1};
    cddp_sampler_state state = {{FORMAT_1}};
    const int64_t *batch;
    cddp_sampler *s;

    cr_assert_eq(cddp_sampler_count(NULL), 0);
    cr_assert_eq(cddp_sampler_epoch(NULL), 0);
    cr_assert_null(cddp_sampler_indices(NULL));
    cr_assert_eq(cddp_sampler_next(NULL, 1, &batch), 0);
    cr_assert_eq(cddp_sampler_set_epoch(NULL, 0), CDDP_E_INVALID);
    cr_assert_str_eq(cddp_last_error(), "cddp_sampler_set_epoch: sampler must not be NULL");
    cr_assert_eq(cddp_sampler_set_state(NULL, &state), CDDP_E_INVALID);
    cddp_sampler_get_state(NULL, &state);
    cddp_sampler_get_state(NULL, NULL);
    cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_OK);
    cr_assert_eq(cddp_sampler_next(s, 1, NULL), 0);
    cr_assert_eq(cddp_sampler_set_state(s, &state), CDDP_E_INVALID, "of no sampler");
    cddp_sampler_destroy(s);
}

Test(sampler, ranks_cover_data_set_without_padding)
{
    int seen[12] = {0};

    for (int rank = 0; rank < 4; rank++) {
        cddp_sampler_options opt = {.size = sizeof opt, .n = 12, .world_size = 4, .rank = rank, .seed = -3};
        cddp_sampler *s;

        cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_OK);
        for (size_t i = 0; i < cddp_sampler_count(s); i++)
            seen[cddp_sampler_indices(s)[i]]++;
        cddp_sampler_destroy(s);
    }
    for (int i = 0; i < 12; i++)
        cr_assert_eq(seen[i], 1);
}

Test(sampler, empty_data_set_has_no_indices)
{
    for (int64_t n = 0; n < 2; n++) {
        cddp_sampler_options opt = {.size = sizeof opt, .n = n, .world_size = 2, .drop_last = 1};
        cddp_sampler *s;

        cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_OK);
        cr_assert_eq(cddp_sampler_count(s), 0);
        cr_assert_eq(cddp_sampler_set_epoch(s, 5), CDDP_OK);
        cddp_sampler_destroy(s);
    }
}

Test(sampler, rejects_invalid_options)
{
    static const struct {
        cddp_sampler_options opt;
        const char *text;
    } bad[] = {
        {{.size = 0, .n = 1, .world_size = 1}, "size is 0"},
        {{.size = sizeof(cddp_sampler_options), .n = -1, .world_size = 1}, "-1 samples"},
        {{.size = sizeof(cddp_sampler_options), .n = 1, .world_size = 0}, "world_size"},
        {{.size = sizeof(cddp_sampler_options), .n = 1, .world_size = 2, .rank = 2}, "from 0 to 1, not 2"},
        {{.size = sizeof(cddp_sampler_options), .n = 1, .world_size = 2, .rank = -1}, "not -1"},
    };
    cddp_sampler *s = NULL;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(cddp_sampler_create(&s, &bad[i].opt), CDDP_E_INVALID, "case %zu", i);
        cr_assert(strstr(cddp_last_error(), bad[i].text) != NULL, "case %zu: %s", i, cddp_last_error());
    }
    cr_assert_null(s);
    cr_assert_eq(cddp_sampler_create(&s, NULL), CDDP_E_INVALID);
}

Test(sampler, rejects_data_set_beyond_memory)
{
    cddp_sampler_options opt = {.size = sizeof opt, .n = INT64_MAX, .world_size = 1};
    cddp_sampler *s;

    cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_E_NOMEM);
    opt.n = INT64_MAX / 8 + 1;
    cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_E_NOMEM);
}

Test(sampler, rejects_negative_epoch)
{
    cddp_sampler_options opt = {.size = sizeof opt, .n = 3, .world_size = 1, .no_shuffle = 1};
    cddp_sampler *s;

    cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_OK);
    cr_assert_eq(cddp_sampler_set_epoch(s, -1), CDDP_E_INVALID);
    cr_assert_eq(cddp_sampler_indices(s)[2], 2);
    cddp_sampler_destroy(s);
}
