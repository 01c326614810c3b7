/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/process/sockets.h"

#include <string.h>
#include <unistd.h>

CDI_SUITE(sockets);

static bool is(const char *line, const char *address, uint64_t *inode)
{
    struct cdi_address a;

    cr_assert(cdi_address_parse(address, &a), "%s", address);
    return sockets_line_is(line, &a, inode);
}

Test(sockets, reads_lines_of_proc)
{
    static const char v4[] =
        "   1: 0100007F:1F90 0200007F:B2C4 01 00000000:00000000 00:00000000 00000000  1000        0 "
        "123456 1 0000000000000000 20 4 30 10 -1\n";
    static const char v6[] = "  12: 0000000000000000FFFF00000100007F:1F91 0000000000000000FFFF00000100007F:0050 01 "
                             "00000000:00000000 02:000A0000 00000000     0        0 77 2 0 20 0 0 10 -1\n";
    static const char real[] = "   0: 000000FD000000000000000001000000:1F92 00000000000000000000000000000000:0000 0A "
                               "00000000:00000000 00:00000000 00000000 0 0 18446744073709551615 1\n";
    uint64_t inode = 0;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    cr_assert(is(v4, "127.0.0.1:8080", &inode) && inode == 123456);
    cr_assert_not(is(v4, "127.0.0.1:8081", &inode));
    cr_assert_not(is(v4, "127.0.0.2:45764", &inode), "that is the peer");
    cr_assert(is(v6, "127.0.0.1:8081", &inode) && inode == 77);
    cr_assert(is(v6, "[::ffff:127.0.0.1]:8081", &inode));
    cr_assert(is(real, "[fd00::1]:8082", &inode) && inode == UINT64_MAX);
#endif
    cr_assert_not(
        is("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid", "1.2.3.4:5", &inode));
    cr_assert_not(is("   1: 0100007:1F90 0200007F:B2C4 01 0:0 0:0 0 0 0 7", "127.0.0.1:8080", &inode));
    cr_assert_not(is("", "127.0.0.1:8080", &inode));
}

Test(sockets, finds_own_connection)
{
    struct cdi_address at = {.u.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)},
                             .len = sizeof at.u.v4};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
        client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t len = sizeof at.u.v4;
    uint64_t inode;

    cr_assert_eq(bind(listener, &at.u.any, len), 0);
    cr_assert_eq(listen(listener, 1), 0);
    cr_assert_eq(getsockname(listener, &at.u.any, &len), 0);
    cr_assert_eq(connect(client, &at.u.any, len), 0);
    cr_assert_eq(getsockname(client, &at.u.any, &len), 0);
    cr_assert(sockets_find(&at, &inode));
    cr_assert(sockets_has(getpid(), inode));
    cr_assert_not(sockets_has(getpid(), inode + 1000000));
    cr_assert_not(sockets_has(getppid(), inode));
    cr_assert_not(sockets_has(-7, inode));
    (void)close(client);
    (void)close(listener);
    cr_assert_not(sockets_find(&at, &inode) && sockets_has(getpid(), inode));
}
