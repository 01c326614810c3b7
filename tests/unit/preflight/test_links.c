/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/links.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

TestSuite(links); /* the server's thread and sockets last until the process ends */

Test(links, every_pair_meets_once)
{
    for (uint32_t n = 0; n <= 17; n++) {
        unsigned met[17][17] = {{0}};

        for (uint32_t r = 0; r < links_rounds(n); r++)
            for (uint32_t i = 0; i < n; i++) {
                uint32_t other = links_partner(i, n, r);

                if (other == UINT32_MAX) {
                    cr_assert(n % 2 == 1, "only an odd number leaves one over");
                    continue;
                }
                cr_assert(other < n && other != i);
                cr_assert_eq(links_partner(other, n, r), i, "%u of %u in round %u", i, n, r);
                met[i][other]++;
            }
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < n; k++)
                cr_assert_eq(met[i][k], i != k, "%u and %u of %u", i, k, n);
    }
    cr_assert_eq(links_partner(3, 3, 0), UINT32_MAX);
}

static const struct cdi_secret token = {.key = "0123456789abcde"};

static void serve(struct links_target *t)
{
    struct cdi_address at;
    struct cdi_error err;

    cr_assert(cdi_address_parse("127.0.0.1:1", &at));
    memset(t, 0, sizeof *t);
    cr_assert_eq(links_serve(&at, 0, &token, t->text, &err), CDDP_OK, "%s", err.msg);
    t->token = token;
}

Test(links, reaches_a_node_and_measures_clock_and_rate)
{
    struct links_target t[2];

    serve(&t[0]);
    t[1] = t[0];
    links_reach(t, 2, 5000);
    for (int i = 0; i < 2; i++) {
        cr_assert(t[i].reached && t[i].why[0] == '\0', "%s", t[i].why);
        cr_assert(t[i].error_ns >= 0 && t[i].clock_ns < 1000000000 && t[i].clock_ns > -1000000000);
    }
    cr_assert_gt(links_rate(&t[0], 20, 5000), 0);
}

Test(links, reports_why_a_node_is_not_reached)
{
    struct links_target t[3];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    int closed = socket(AF_INET, SOCK_STREAM, 0);

    cr_assert(bind(closed, (struct sockaddr *)&a, len) == 0 && getsockname(closed, (struct sockaddr *)&a, &len) == 0);
    serve(&t[0]);
    t[1] = t[2] = t[0];
    t[0].token.key[3] ^= 1;
    (void)snprintf(t[1].text, sizeof t[1].text, "127.0.0.1:%d", ntohs(a.sin_port)); /* bound, not listening */
    t[2].text[0] = '\0';
    links_reach(t, 3, 5000);
    cr_assert(!t[0].reached && strstr(t[0].why, "does not answer: Connection reset by peer") != NULL, "%s", t[0].why);
    cr_assert(!t[1].reached && strstr(t[1].why, ": Connection refused") != NULL, "%s", t[1].why);
    cr_assert(!t[2].reached && strstr(t[2].why, "has not published") != NULL, "%s", t[2].why);
    cr_assert_eq(links_rate(&t[1], 20, 100), 0);
    (void)close(closed);
}

Test(links, serves_more_nodes_than_at_once)
{
    static struct links_target t[300];

    serve(&t[0]);
    for (size_t i = 1; i < 300; i++)
        t[i] = t[0];
    links_reach(t, 300, 20000);
    for (size_t i = 0; i < 300; i++)
        cr_assert(t[i].reached, "%zu: %s", i, t[i].why);
}
