/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "protocol/frame.h"
#include "protocol/sniff.h"

#include <string.h>

CDI_SUITE(sniff);

Test(sniff, detects_each_protocol_by_its_opening)
{
    static const struct {
        const char *bytes;
        size_t len;
        enum cdi_sniff what;
    } cases[] = {
        {"\x00\xce\xf7\x85\x3c", 5, CDI_SNIFF_STORE},
        {CDI_CONTROL_OPENING, 8, CDI_SNIFF_CONTROL},
        {"GET ", 4, CDI_SNIFF_HTTP},
        {"CONNECT ", 8, CDI_SNIFF_HTTP},
        {"POST ", 5, CDI_SNIFF_HTTP},
        {"PATCH ", 6, CDI_SNIFF_HTTP},
    };

    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (size_t n = 0; n <= cases[c].len; n++)
            cr_assert_eq(cdi_sniff(cases[c].bytes, n), n < cases[c].len ? CDI_SNIFF_UNDECIDED : cases[c].what,
                         "case %zu, %zu bytes", c, n);
}

Test(sniff, rejects_other_bytes_at_once)
{
    cr_assert_eq(cdi_sniff("\x0d", 1), CDI_SNIFF_GARBAGE);
    cr_assert_eq(cdi_sniff("\x00\xce\xf7\x85\x3d", 5), CDI_SNIFF_GARBAGE);
    cr_assert_eq(cdi_sniff("\x16\x03\x01", 3), CDI_SNIFF_GARBAGE);
    cr_assert_eq(cdi_sniff("GETX", 4), CDI_SNIFF_GARBAGE);
    cr_assert_eq(cdi_sniff("CDDP\x02", 5), CDI_SNIFF_GARBAGE);
    cr_assert_eq(cdi_sniff("get ", 4), CDI_SNIFF_GARBAGE);
}
