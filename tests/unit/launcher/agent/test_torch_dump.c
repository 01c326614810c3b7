/* SPDX-License-Identifier: Apache-2.0 */
/* The file is what PyTorch 2.13 wrote on rank 0 of two, in its fourth all_reduce, which rank 1 had not begun. */
#include "hygiene.h"
#include "launcher/agent/torch_dump.h"

#include <stdio.h>
#include <string.h>

CDI_SUITE(torch_dump);

static uint8_t bytes[65536];
static struct torch_dump dump;
static struct cdi_error err;

static size_t load(void)
{
    FILE *f = fopen(CDI_TEST_DATA "/torch-recorder-2.13.pickle", "re");
    size_t n;

    cr_assert_not_null(f);
    n = fread(bytes, 1, sizeof bytes, f);
    (void)fclose(f);
    cr_assert(n > 500 && n < sizeof bytes);
    return n;
}

static const char *text_of(void)
{
    static char text[200];

    torch_dump_text(&dump, text, sizeof text);
    return text;
}

Test(torch_dump, reads_what_pytorch_writes)
{
    size_t n = load();

    cr_assert_eq(torch_dump_read(bytes, n, &dump, &err), CDDP_OK, "%s", err.msg);
    cr_assert_eq(dump.n, 4);
    cr_assert(dump.has_open && dump.has_last && dump.open.seq == 4 && dump.last.seq == 3);
    cr_assert_str_eq(dump.last.sizes, "[[4, 5]]");
    cr_assert_str_eq(text_of(), "PyTorch's recorder: in gloo:all_reduce #4 of default_pg ([[8]], scheduled)");
    dump.has_open = false;
    cr_assert_str_eq(text_of(), "PyTorch's recorder: after gloo:all_reduce #3 of default_pg ([[4, 5]], scheduled)");
    dump.has_last = false;
    cr_assert_str_eq(text_of(), "");
}

Test(torch_dump, rejects_cut_dumps)
{
    size_t n = load();

    for (size_t cut = 0; cut < n; cut++) {
        cr_assert_eq(torch_dump_read(bytes, cut, &dump, &err), CDDP_E_PROTOCOL, "%zu", cut);
        cr_assert(dump.n == 0 && !dump.has_open && !dump.has_last);
    }
}

/* GLOBAL and REDUCE call what a pickle names; the reader has nothing of the kind. */
Test(torch_dump, executes_nothing)
{
    static const char call[] = "\x80\x02"
                               "cposix\nsystem\nX\x02\0\0\0id\x85R.";

    cr_assert_eq(torch_dump_read((const uint8_t *)call, sizeof call - 1, &dump, &err), CDDP_E_PROTOCOL);
    cr_assert_not_null(strstr(err.msg, "after 3 bytes"), "%s", err.msg);
}

Test(torch_dump, limits_what_repeats)
{
    static uint8_t many[400000];

    memset(many, '(', sizeof many);
    cr_assert_eq(torch_dump_read(many, sizeof many, &dump, &err), CDDP_E_LIMIT);
    cr_assert_eq(torch_dump_read((const uint8_t *)"}r\xff\xff\xff\x7f.", 7, &dump, &err), CDDP_E_LIMIT);
    cr_assert_eq(torch_dump_read((const uint8_t *)"X\xff\xff\xff\xff.", 6, &dump, &err), CDDP_E_PROTOCOL);
    cr_assert_eq(torch_dump_read((const uint8_t *)"h\x07.", 3, &dump, &err), CDDP_E_PROTOCOL);
    cr_assert_eq(torch_dump_read((const uint8_t *)"(q\0.", 4, &dump, &err), CDDP_E_PROTOCOL, "a mark cannot be kept");
    cr_assert_eq(torch_dump_read((const uint8_t *)"]K\x01K\x02"
                                                  "e.",
                                 7, &dump, &err),
                 CDDP_E_PROTOCOL);
    cr_assert_eq(torch_dump_read((const uint8_t *)"a.", 2, &dump, &err), CDDP_E_PROTOCOL);
    cr_assert_eq(torch_dump_read((const uint8_t *)"\x87.", 2, &dump, &err), CDDP_E_PROTOCOL);
}

Test(torch_dump, hides_control_characters)
{
    static const char entry[] =
        "}(X\x09\0\0\0record_idK\x01X\x0e\0\0\0profiling_nameX\x03\0\0\0a\x1b[X\x05\0\0\0stateX\x07"
        "\0\0\0startedX\x11\0\0\0collective_seq_id\x8a\x08\xff\xff\xff\xff\xff\xff\xff\xffX\x06\0\0\0is_p2p"
        "\x88X\x0a\0\0\0p2p_seq_idM\x01\x02u.";

    cr_assert_eq(torch_dump_read((const uint8_t *)entry, sizeof entry - 1, &dump, &err), CDDP_OK, "%s", err.msg);
    cr_assert(dump.n == 1 && dump.has_open && dump.open.p2p);
    cr_assert_str_eq(text_of(), "PyTorch's recorder: in a?[ #513 (started)");
}
