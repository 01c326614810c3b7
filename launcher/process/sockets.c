/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 512
#define READS 3 /* of the kernel's table */
#define HEX_V4 8
#define HEX_V6 32

/* The address as IPv6, and the port, both in the network's order. */
static void socket_address(const struct cdi_address *a, struct in6_addr *ip, uint16_t *port)
{
    if (a->u.any.sa_family == AF_INET6) {
        *ip = a->u.v6.sin6_addr;
        *port = ntohs(a->u.v6.sin6_port);
        return;
    }
    memset(ip, 0, sizeof *ip);
    ip->s6_addr[10] = ip->s6_addr[11] = 0xFF;
    memcpy(ip->s6_addr + 12, &a->u.v4.sin_addr, 4);
    *port = ntohs(a->u.v4.sin_port);
}

/* The kernel prints each 32 bits of an address as a number of this machine, without turning their bytes. */
static bool socket_read_ip(const char *hex, struct in6_addr *ip)
{
    size_t n = strlen(hex);
    uint32_t word;

    if (n != HEX_V4 && n != HEX_V6)
        return false;
    memset(ip, 0, sizeof *ip);
    ip->s6_addr[10] = ip->s6_addr[11] = 0xFF;
    for (size_t i = 0; i < n / 8; i++) {
        if (sscanf(hex + 8 * i, "%8" SCNx32, &word) != 1)
            return false;
        memcpy(ip->s6_addr + (n == HEX_V4 ? 12 : 4 * i), &word, sizeof word);
    }
    return true;
}

/* Is this the kernel's text of an address and its port? */
static bool socket_is(const struct cdi_address *a, const char *hex, unsigned port)
{
    struct in6_addr wanted, found;
    uint16_t wanted_port;

    if (!socket_read_ip(hex, &found))
        return false;
    socket_address(a, &wanted, &wanted_port);
    return port == wanted_port && memcmp(&wanted, &found, sizeof found) == 0;
}

bool sockets_line_is(const char *line, const struct cdi_address *local, const struct cdi_address *remote,
                     uint64_t *inode)
{
    char from[HEX_V6 + 1], to[HEX_V6 + 1];
    unsigned from_port, to_port;
    uint64_t number;

    if (sscanf(line, " %*u: %32[0-9A-Fa-f]:%4x %32[0-9A-Fa-f]:%4x %*x %*x:%*x %*x:%*x %*x %*u %*u %" SCNu64, from,
               &from_port, to, &to_port, &number) != 5 ||
        number == 0 || !socket_is(local, from, from_port) || !socket_is(remote, to, to_port))
        return false;
    *inode = number;
    return true;
}

static bool socket_in_table(const char *table, const struct cdi_address *local, const struct cdi_address *remote,
                            uint64_t *inode)
{
    char line[LINE_MAX_BYTES];
    bool found = false;
    FILE *f = fopen(table, "re");

    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof line, f) != NULL)
        found = sockets_line_is(line, local, remote, inode);
    (void)fclose(f);
    return found;
}

/*
 * The kernel prints its table in pieces, and begins each at the place where the last one ended (tcp_seek_last_pos in
 * net/ipv4/tcp_ipv4.c). A connection that ends in between moves the others there: one of them may be left out.
 */
bool sockets_find(const struct cdi_address *local, const struct cdi_address *remote, uint64_t *inode)
{
    for (int i = 0; i < READS; i++)
        if (socket_in_table("/proc/self/net/tcp", local, remote, inode) ||
            socket_in_table("/proc/self/net/tcp6", local, remote, inode))
            return true;
    return false;
}

bool sockets_has(pid_t pid, uint64_t inode)
{
    char path[64], target[64], wanted[64];
    struct dirent *entry;
    bool found = false;
    DIR *fds;

    (void)snprintf(path, sizeof path, "/proc/%ld/fd", (long)pid);
    (void)snprintf(wanted, sizeof wanted, "socket:[%" PRIu64 "]", inode);
    fds = opendir(path);
    if (fds == NULL)
        return false;
    while (!found && (entry = readdir(fds)) != NULL) {
        ssize_t n;

        if (entry->d_name[0] == '.')
            continue;
        n = readlinkat(dirfd(fds), entry->d_name, target, sizeof target - 1);
        if (n <= 0)
            continue;
        target[n] = '\0';
        found = strcmp(target, wanted) == 0;
    }
    (void)closedir(fds);
    return found;
}
