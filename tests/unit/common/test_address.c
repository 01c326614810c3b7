/* SPDX-License-Identifier: Apache-2.0 */
/* Internet addresses to and from text. */
#include "common/address.h"
#include "hygiene.h"

CDI_SUITE(address);

Test(address, survives_print_and_parse)
{
    static const char *const texts[] = {"10.0.0.1:4000", "[::1]:1", "[fd00::12]:65535", "[fe80::1%lo]:4000",
                                        "[fe80::1%4294967295]:4000"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct cdi_address a;
        char back[CDI_ADDRESS_TEXT];

        cr_assert(cdi_address_parse(texts[i], &a), "%s", texts[i]);
        cdi_address_text(&a.u.any, back);
        cr_assert_str_eq(back, texts[i]);
    }
}

Test(address, prints_mapped_ipv4_as_ipv4)
{
    struct cdi_address a;
    char text[CDI_ADDRESS_TEXT];

    cr_assert(cdi_address_parse("[::ffff:192.0.2.7]:80", &a));
    cdi_address_text(&a.u.any, text);
    cr_assert_str_eq(text, "192.0.2.7:80");
}

Test(address, rejects_text_without_numeric_host_and_port)
{
    static const char *const texts[] = {"",
                                        ":",
                                        "10.0.0.1",
                                        "10.0.0.1:0",
                                        "10.0.0.1:65536",
                                        "host:80",
                                        "[::1:80",
                                        "[fe80::1%]:80",
                                        "[fe80::1%no-such-interface]:80",
                                        "[]:80",
                                        "::1]:80",
                                        "[",
                                        "1:",
                                        "11111111111111111111111111111111111111111111111111111111111111111111:1"};
    struct cdi_address a;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        cr_assert(!cdi_address_parse(texts[i], &a), "%s", texts[i]);
}

Test(address, a_host_with_a_port_is_rejected_with_both_settings)
{
    static const char *const good[] = {"",       "*",   "node1",     "10.0.0.1", "::1", "fe80::1%eth0",
                                       "node1:", ":80", "node1:http"};
    static const char *const bad[][2] = {{"node1:80", "give --bind=node1 and --port=80"},
                                         {"10.0.0.1:0", "give --bind=10.0.0.1 and --port=0"},
                                         {"[fe80::1%eth0]:80", "give --bind=fe80::1%eth0 and --port=80"}};
    struct cdi_error err;

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        cr_assert_eq(cdi_address_without_port(good[i], "--bind", "--port", &err), CDDP_OK, "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(cdi_address_without_port(bad[i][0], "--bind", "--port", &err), CDDP_E_INVALID, "%s", bad[i][0]);
        cr_assert_not_null(strstr(err.msg, bad[i][1]), "%s", err.msg);
    }
}

Test(address, port_and_loopback_of_both_families)
{
    static const struct {
        const char *text;
        bool loopback;
    } cases[] = {{"127.3.0.1:81", true}, {"10.0.0.1:82", false}, {"[::1]:83", true}, {"[fd00::1]:84", false}};
    struct sockaddr unix_one = {.sa_family = AF_UNIX};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cdi_address a;
        char text[CDI_ADDRESS_TEXT];

        cr_assert(cdi_address_parse(cases[i].text, &a));
        cr_assert_eq(cdi_address_port(&a.u.any), 81 + i);
        cr_assert_eq(cdi_address_is_loopback(&a.u.any), cases[i].loopback, "%s", cases[i].text);
        cdi_address_set_port(&a.u.any, 65535);
        cdi_address_text(&a.u.any, text);
        cr_assert_not_null(strstr(text, ":65535"), "%s", text);
    }
    cr_assert_eq(cdi_address_port(&unix_one), 0);
    cr_assert_not(cdi_address_is_loopback(&unix_one));
}
