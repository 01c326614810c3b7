/* SPDX-License-Identifier: Apache-2.0 */
#include "common/env.h"
#include "hygiene.h"

#include <stdlib.h>
#include <string.h>

CDI_SUITE(env);

Test(env, reads_a_number_within_its_range)
{
    int64_t v = -1;
    struct cdi_error err;

    (void)setenv("T_RANK", "7", 1);
    cr_assert_eq(cdi_env_int("T_RANK", 0, 7, &v, &err), CDDP_OK);
    cr_assert_eq(v, 7);
    cr_assert_eq(cdi_env_int("T_RANK", 0, 6, &v, &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "T_RANK='7' is not a whole number from 0 to 6");
}

Test(env, names_a_value_that_is_not_a_number)
{
    const char *const bad[] = {"x", "1x", " 1", "+1", "0x10", "1.5", "99999999999999999999", "-"};
    int64_t v;
    struct cdi_error err;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        (void)setenv("T_RANK", bad[i], 1);
        cr_assert_eq(cdi_env_int("T_RANK", 0, 1000, &v, &err), CDDP_E_INVALID, "'%s' was accepted", bad[i]);
        cr_assert(strstr(err.msg, bad[i]) != NULL);
    }
}

Test(env, empty_counts_as_unset)
{
    int64_t v;

    (void)unsetenv("T_RANK");
    cr_assert_eq(cdi_env_int("T_RANK", 0, 9, &v, NULL), CDDP_E_NOT_FOUND);
    (void)setenv("T_RANK", "", 1);
    cr_assert_eq(cdi_env_int("T_RANK", 0, 9, &v, NULL), CDDP_E_NOT_FOUND);
    cr_assert_eq(cdi_env_int_or("T_RANK", 0, 9, 4, &v, NULL), CDDP_OK);
    cr_assert_eq(v, 4);
}

Test(env, reads_a_size_with_an_optional_unit)
{
    static const char *const bad[] = {
        "", "0", "-1", "+1", " 1", "1 ", "K", "1KB", "1k", "1KK", "1T", "9000000000G", "99999999999999999999"};
    int64_t n = 7;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert(!cdi_parse_size(bad[i], INT64_MAX, &n), "'%s'", bad[i]);
    cr_assert(!cdi_parse_size("2K", 2047, &n) && n == 7);
    cr_assert(cdi_parse_size("2K", 2048, &n) && n == 2048);
    cr_assert(cdi_parse_size("12", 12, &n) && n == 12);
    cr_assert(cdi_parse_size("3M", INT64_MAX, &n) && n == 3 << 20);
    cr_assert(cdi_parse_size("5G", INT64_MAX, &n) && n == INT64_C(5) << 30);
}

Test(env, reads_ranges_of_ports)
{
    static const char *const bad[] = {"",    "-",       "7",     "7-",   "-7",   "9-8",
                                      "0-5", "1-65536", "1-2-3", " 1-2", "1-2 ", "00000001-2"};
    uint16_t first = 7, last = 7;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert(!cdi_parse_ports(bad[i], &first, &last), "'%s'", bad[i]);
    cr_assert(first == 7 && last == 7);
    cr_assert(cdi_parse_ports("1-65535", &first, &last) && first == 1 && last == 65535);
    cr_assert(cdi_parse_ports("29500-29500", &first, &last) && first == 29500 && last == 29500);
}
