/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "sha256.h"
#include "worker/sampler.h"

#include <cddp/cddp.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

CDI_SUITE(sampler, .timeout = 60);

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

/* Indices against the record: the hash of all of them (x86 and ARM are little-endian, as the hash wants it). */
static void expect_indices(const json_t *want, const int64_t *got, size_t n, size_t which)
{
    char hex[65];
    json_t *full = json_object_get(want, "full");

    for (size_t i = 0; full != NULL && i < n; i++)
        cr_assert_eq(got[i], (int64_t)json_real_value(json_array_get(full, i)), "case %zu, index %zu", which, i);
    sha256_hex(got, n * sizeof *got, hex);
    cr_assert_str_eq(hex, json_string_value(json_object_get(want, "sha256")), "case %zu", which);
}

Test(sampler, randperm_is_torchs_randperm)
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
 * torch.randperm(214748364), seed 42, its first 16 elements: the smallest n that takes the wide form. Only the places
 * that end up among the first 16 are kept, so that no gigabyte is needed.
 */
Test(sampler, the_wide_form_of_randperm_is_torchs_too)
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

Test(sampler, every_recorded_case_of_torchs_distributed_sampler_is_met)
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

Test(sampler, ranks_share_the_data_set_without_gap_when_nothing_is_padded)
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

Test(sampler, an_empty_data_set_gives_no_indices_and_no_crash)
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

Test(sampler, what_cannot_be_is_refused_with_a_sentence)
{
    static const struct {
        cddp_sampler_options opt;
        const char *says;
    } bad[] = {
        {{.size = 0, .n = 1, .world_size = 1}, "size is 0"},
        {{.size = sizeof(cddp_sampler_options), .n = -1, .world_size = 1}, "-1 samples"},
        {{.size = sizeof(cddp_sampler_options), .n = 1, .world_size = 0}, "world_size"},
        {{.size = sizeof(cddp_sampler_options), .n = 1, .world_size = 2, .rank = 2}, "from 0 to 1, not 2"},
        {{.size = sizeof(cddp_sampler_options), .n = 1, .world_size = 2, .rank = -1}, "not -1"},
        {{.size = sizeof(cddp_sampler_options), .n = 1, .world_size = 1, .reserved = {1}}, "reserved"},
    };
    cddp_sampler *s = NULL;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(cddp_sampler_create(&s, &bad[i].opt), CDDP_E_INVALID, "case %zu", i);
        cr_assert(strstr(cddp_last_error(), bad[i].says) != NULL, "case %zu: %s", i, cddp_last_error());
    }
    cr_assert_null(s);
    cr_assert_eq(cddp_sampler_create(&s, NULL), CDDP_E_INVALID);
}

Test(sampler, a_data_set_beyond_memory_is_an_error_not_an_overflow)
{
    cddp_sampler_options opt = {.size = sizeof opt, .n = INT64_MAX, .world_size = 1};
    cddp_sampler *s;

    cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_E_NOMEM);
    opt.n = INT64_MAX / 8 + 1;
    cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_E_NOMEM);
}

Test(sampler, a_negative_epoch_is_refused_and_changes_nothing)
{
    cddp_sampler_options opt = {.size = sizeof opt, .n = 3, .world_size = 1, .no_shuffle = 1};
    cddp_sampler *s;

    cr_assert_eq(cddp_sampler_create(&s, &opt), CDDP_OK);
    cr_assert_eq(cddp_sampler_set_epoch(s, -1), CDDP_E_INVALID);
    cr_assert_eq(cddp_sampler_indices(s)[2], 2);
    cddp_sampler_destroy(s);
}
