/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/process/sockets.h"

#include <string.h>
#include <unistd.h>

CDI_SUITE(sockets);

static bool is(const char *line, const char *from, const char *to, uint64_t *inode)
{
    struct cdi_address local, remote;

    cr_assert(cdi_address_parse(from, &local) && cdi_address_parse(to, &remote), "%s %s", from, to);
    return sockets_line_is(line, &local, &remote, inode);
}

Test(sockets, reads_lines_of_proc)
{
    static const char v4[] =
        "   1: 0100007F:1F90 0200007F:B2C4 01 00000000:00000000 00:00000000 00000000  1000        0 "
        "123456 1 0000000000000000 20 4 30 10 -1\n";
    static const char v6[] = "  12: 0000000000000000FFFF00000100007F:1F91 0000000000000000FFFF00000100007F:0050 01 "
                             "00000000:00000000 02:000A0000 00000000     0        0 77 2 0 20 0 0 10 -1\n";
    static const char real[] = "   0: 000000FD000000000000000001000000:1F92 000000FD000000000000000002000000:0050 0A "
                               "00000000:00000000 00:00000000 00000000 0 0 18446744073709551615 1\n";
    static const char closed[] =
        "   1: 0100007F:1F90 0200007F:B2C4 06 00000000:00000000 03:00000EF7 00000000     0     "
        "   0 0 3 0000000000000000\n";
    uint64_t inode = 0;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    cr_assert(is(v4, "127.0.0.1:8080", "127.0.0.2:45764", &inode) && inode == 123456);
    cr_assert_not(is(v4, "127.0.0.1:8081", "127.0.0.2:45764", &inode));
    cr_assert_not(is(v4, "127.0.0.1:8080", "127.0.0.2:45765", &inode), "another server");
    cr_assert_not(is(v4, "127.0.0.1:8080", "127.0.0.3:45764", &inode), "another host");
    cr_assert_not(is(v4, "127.0.0.2:45764", "127.0.0.1:8080", &inode), "that is the peer");
    cr_assert(is(v6, "127.0.0.1:8081", "127.0.0.1:80", &inode) && inode == 77);
    cr_assert(is(v6, "[::ffff:127.0.0.1]:8081", "127.0.0.1:80", &inode));
    cr_assert(is(real, "[fd00::1]:8082", "[fd00::2]:80", &inode) && inode == UINT64_MAX);
    cr_assert_not(is(closed, "127.0.0.1:8080", "127.0.0.2:45764", &inode), "no process has it");
#endif
    cr_assert_not(is("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid", "1.2.3.4:5",
                     "1.2.3.4:6", &inode));
    cr_assert_not(
        is("   1: 0100007:1F90 0200007F:B2C4 01 0:0 0:0 0 0 0 7", "127.0.0.1:8080", "127.0.0.2:45764", &inode));
    cr_assert_not(is("", "127.0.0.1:8080", "127.0.0.2:45764", &inode));
}

/* Connects a socket that is bound to port (0: any) of 127.0.0.1 to a new listener; sets both ends. */
static int dial(uint16_t port, int *listener, struct cdi_address *local, struct cdi_address *remote)
{
    const struct cdi_address loopback = {.u.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)},
                                         .len = sizeof loopback.u.v4};
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    socklen_t len = loopback.len;

    *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *local = *remote = loopback;
    local->u.v4.sin_port = port;
    cr_assert_eq(setsockopt(client, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    cr_assert_eq(bind(client, &local->u.any, len), 0);
    cr_assert_eq(bind(*listener, &remote->u.any, len), 0);
    cr_assert_eq(listen(*listener, 1), 0);
    cr_assert_eq(getsockname(*listener, &remote->u.any, &len), 0);
    cr_assert_eq(connect(client, &remote->u.any, len), 0);
    cr_assert_eq(getsockname(client, &local->u.any, &len), 0);
    return client;
}

Test(sockets, finds_own_connections)
{
    struct cdi_address local, remote, same, other;
    int listener, second_listener, client = dial(0, &listener, &local, &remote),
                                   second = dial(local.u.v4.sin_port, &second_listener, &same, &other);
    uint64_t inode, second_inode;

    cr_assert(sockets_find(&local, &remote, &inode));
    cr_assert(sockets_has(getpid(), inode));
    cr_assert_not(sockets_has(getpid(), inode + 1000000));
    cr_assert_not(sockets_has(getppid(), inode));
    cr_assert_not(sockets_has(-7, inode));
    cr_assert_eq(same.u.v4.sin_port, local.u.v4.sin_port);
    cr_assert(sockets_find(&same, &other, &second_inode) && second_inode != inode, "one port, two connections");
    cr_assert(sockets_has(getpid(), second_inode));
    (void)close(client);
    (void)close(listener);
    (void)close(second);
    (void)close(second_listener);
    cr_assert_not(sockets_find(&local, &remote, &inode));
}
