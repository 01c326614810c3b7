/* SPDX-License-Identifier: Apache-2.0 */
/* Names of localhost on a node that does not know them: this program's getaddrinfo knows no name, unless a test sets
 * one. */
#include "common/resolve.h"
#include "hygiene.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>

CDI_SUITE(resolve);

typedef int getaddrinfo_fn(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static int answer = EAI_NONAME; /* of the node, to any name; 0: `address` */
static const char *address = "192.0.2.7";
static int asked;

static int real(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    getaddrinfo_fn *libc;
    void *found = dlsym(RTLD_NEXT, "getaddrinfo");

    memcpy(&libc, &found, sizeof libc);
    return libc(host, service, hints, out);
}

/* Replaces libc's. */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    if (host == NULL)
        return real(host, service, hints, out);
    asked++;
    return answer == 0 ? real(address, service, hints, out) : answer;
}

static const struct addrinfo stream = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};

/* Checks that every address of the list is loopback and has this port, and returns their number. */
static int count_loopback(const struct addrinfo *list, uint16_t port)
{
    int n = 0;

    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next, n++) {
        struct sockaddr_in four;
        struct sockaddr_in6 six;

        cr_assert_eq(a->ai_socktype, SOCK_STREAM);
        if (a->ai_family == AF_INET) {
            memcpy(&four, a->ai_addr, sizeof four);
            cr_assert_eq(ntohl(four.sin_addr.s_addr), INADDR_LOOPBACK);
            cr_assert_eq(ntohs(four.sin_port), port);
        } else {
            cr_assert_eq(a->ai_family, AF_INET6);
            memcpy(&six, a->ai_addr, sizeof six);
            cr_assert(IN6_IS_ADDR_LOOPBACK(&six.sin6_addr));
            cr_assert_eq(ntohs(six.sin6_port), port);
        }
    }
    return n;
}

Test(resolve, knows_names_of_localhost)
{
    static const char *const yes[] = {"localhost", "LocalHost", "localhost.", "a.localhost", "a.b.localhost."};
    static const char *const no[] = {"",         ".",           "host",           "localhost.org", "notlocalhost",
                                     "local",    "localhost..", "localhost-node", "127.0.0.1",     "::1",
                                     "ocalhost."};

    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++)
        cr_assert(cdi_is_localhost(yes[i]), "%s", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
        cr_assert_not(cdi_is_localhost(no[i]), "%s", no[i]);
}

Test(resolve, localhost_falls_back_to_loopback)
{
    static const int failures[] = {EAI_NONAME, EAI_AGAIN, EAI_FAIL, EAI_NODATA};
    static const int flags[] = {0, AI_NUMERICSERV, AI_PASSIVE};
    struct addrinfo *list, hints = stream;

    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++)
        for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++) {
            answer = failures[i];
            hints.ai_flags = flags[k];
            cr_assert_eq(cdi_resolve("localhost", "29500", &hints, &list), 0);
            cr_assert_geq(count_loopback(list, 29500), 1);
            freeaddrinfo(list);
            cr_assert_eq(cdi_resolve("rank0.localhost", NULL, &hints, &list), 0);
            cr_assert_geq(count_loopback(list, 0), 1);
            freeaddrinfo(list);
        }
}

Test(resolve, the_nodes_own_localhost_comes_first)
{
    struct sockaddr_in found;
    struct addrinfo *list;

    answer = 0;
    cr_assert_eq(cdi_resolve("localhost", "80", &stream, &list), 0);
    memcpy(&found, list->ai_addr, sizeof found);
    cr_assert_eq(ntohl(found.sin_addr.s_addr), 0xc0000207);
    freeaddrinfo(list);
}

Test(resolve, passes_on_other_names_and_failures)
{
    struct addrinfo *list;

    cr_assert_eq(cdi_resolve("node1", "80", &stream, &list), EAI_NONAME);
    answer = EAI_MEMORY;
    cr_assert_eq(cdi_resolve("localhost", "80", &stream, &list), EAI_MEMORY);
    answer = EAI_SYSTEM;
    cr_assert_eq(cdi_resolve("localhost", "80", &stream, &list), EAI_SYSTEM);
    cr_assert_eq(asked, 3, "one question for each name");
}

Test(resolve, finds_addresses_that_a_list_has_twice)
{
    struct sockaddr_in one = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a630001)}, other = one;
    struct addrinfo last = {.ai_addr = (struct sockaddr *)&one, .ai_addrlen = sizeof one};
    struct addrinfo second = {.ai_addr = (struct sockaddr *)&other, .ai_addrlen = sizeof other, .ai_next = &last};
    struct addrinfo first = {.ai_addr = (struct sockaddr *)&one, .ai_addrlen = sizeof one, .ai_next = &second};

    other.sin_addr.s_addr = htonl(0x0a630002);
    cr_assert_not(cdi_is_repeated(&first, &first));
    cr_assert_not(cdi_is_repeated(&first, &second));
    cr_assert(cdi_is_repeated(&first, &last));
}
