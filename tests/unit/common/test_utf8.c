/* SPDX-License-Identifier: Apache-2.0 */
#include "common/utf8.h"
#include "hygiene.h"

#include <string.h>

CDI_SUITE(utf8);

static const char *clean(const char *text)
{
    static char out[64];

    memset(out, 0, sizeof out);
    cdi_utf8_clean(out, text, strlen(text));
    return out;
}

Test(utf8, keeps_characters_of_each_length)
{
    const char *text = "a\xc2\x80\xc3\xa9\xe0\xa0\x80\xed\x9f\xbf\xef\xbf\xbd\xf0\x90\x80\x80\xf4\x8f\xbf\xbf";

    cr_assert_str_eq(clean(text), text);
    cr_assert_eq(cdi_utf8_char("a", 1), 1);
    cr_assert_eq(cdi_utf8_char("\xc3\xa9", 2), 2);
    cr_assert_eq(cdi_utf8_char("\xe2\x82\xac", 3), 3);
    cr_assert_eq(cdi_utf8_char("\xf0\x9f\x8d\xb7", 4), 4);
}

Test(utf8, replaces_each_invalid_byte)
{
    cr_assert_str_eq(clean("caf\xe9 au lait"), "caf? au lait");
    cr_assert_str_eq(clean("\xff\xfe"), "??");
    cr_assert_str_eq(clean("\x80z"), "?z");
    cr_assert_str_eq(clean("\xc0\xaf"), "??");
    cr_assert_str_eq(clean("\xe0\x9f\xbf"), "???");
    cr_assert_str_eq(clean("\xed\xa0\x80"), "???");
    cr_assert_str_eq(clean("\xf0\x8f\xbf\xbf"), "????");
    cr_assert_str_eq(clean("\xf4\x90\x80\x80"), "????");
    cr_assert_str_eq(clean("\xf5\x80\x80\x80"), "????");
}

Test(utf8, rejects_a_truncated_character)
{
    cr_assert_str_eq(clean("x\xe2\x82"), "x??");
    cr_assert_eq(cdi_utf8_char("\xe2\x82\xac", 2), 0);
    cr_assert_str_eq(clean("\xe2(\xac"), "?(?");
}

Test(utf8, cleans_in_place)
{
    char text[] = "a\xff\xc3\xa9\xff";

    cdi_utf8_clean(text, text, strlen(text));
    cr_assert_str_eq(text, "a?\xc3\xa9?");
}
