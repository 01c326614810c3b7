/* SPDX-License-Identifier: Apache-2.0 */
#include "common/visible.h"
#include "hygiene.h"

#include <string.h>

CDI_SUITE(visible);

Test(visible, each_kind_of_character)
{
    static const struct {
        const char *text, *line, *lines; /* lines NULL: as line */
    } rows[] = {
        {"", "", NULL},
        {"plain, tab\tand \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
         "plain, tab\tand \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", NULL},
        {"\x1b[31m\a\x7f", "\\x1b[31m\\x07\\x7f", NULL},
        {"a\nb", "a\\x0ab", "a\nb"},
        {"a\r\nb\r", "a\\x0d\\x0ab\\x0d", "a\nb"},
        {"10%\r20%", "10%\\x0d20%", NULL},
        {"\xc2\x9b"
         "2J\xc2\x80\xc2\x9f\xc2\xa0",
         "\\x9b2J\\x80\\x9f\xc2\xa0", NULL},
        {"\xff\xc2", "\\xff\\xc2", NULL},
        {"\x9b", "\\x9b", NULL},
        {"\xc0\xaf\xed\xa0\x80", "\\xc0\\xaf\\xed\\xa0\\x80", NULL}, /* overlong; a surrogate */
        {"\xe2\x80\xaegpj.exe\xe2\x80\xac", "\\u202egpj.exe\\u202c", NULL},
        {"\xe2\x81\xa6x\xe2\x81\xa9\xd8\x9c\xe2\x80\x8f", "\\u2066x\\u2069\\u061c\\u200f", NULL},
        {"\xe2\x80\xa8\xe2\x80\xa9\xef\xbb\xbf", "\\u2028\\u2029\\ufeff", NULL},
        {"\\x1b", "\\x1b", NULL},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *lines = rows[i].lines != NULL ? rows[i].lines : rows[i].line;
        size_t n = strlen(rows[i].text);
        char out[100], again[100];

        cr_assert_eq(cdi_visible_line(out, sizeof out, rows[i].text, n), strlen(rows[i].line), "row %zu", i);
        cr_assert_str_eq(out, rows[i].line);
        cr_assert_eq(cdi_is_visible_line(rows[i].text, n), strcmp(rows[i].text, rows[i].line) == 0, "row %zu", i);
        cr_assert_eq(cdi_visible_line(again, sizeof again, out, strlen(out)), strlen(out));
        cr_assert_str_eq(again, out, "a visible text stays");
        cr_assert_eq(cdi_visible_lines(out, sizeof out, rows[i].text, n), strlen(lines), "row %zu", i);
        cr_assert_str_eq(out, lines);
    }
}

Test(visible, a_cut_leaves_whole_characters)
{
    const char text[] = "ab\x1b\xe2\x82\xac";
    static const char *const cut[] = {
        "", "", "a", "ab", "ab", "ab", "ab", "ab\\x1b", "ab\\x1b", "ab\\x1b", "ab\\x1b\xe2\x82\xac"};

    for (size_t cap = 0; cap < sizeof cut / sizeof cut[0]; cap++) {
        char out[16] = "";

        cr_assert_eq(cdi_visible_line(out, cap, text, sizeof text - 1), 9, "the whole line");
        cr_assert_str_eq(out, cut[cap], "%zu bytes: '%s'", cap, out);
    }
}
