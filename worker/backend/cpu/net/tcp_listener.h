/* SPDX-License-Identifier: Apache-2.0 */
/* How connections between nodes begin: listening, accepting, the first frame of both sides. For tcp_*.c. */
#ifndef CDI_NET_TCP_LISTENER_H
#define CDI_NET_TCP_LISTENER_H

#include "worker/backend/cpu/net/tcp.h"

#include <errno.h>

#include <netinet/tcp.h>

#define CDI_TCP_ADDRESS_TEXT (CDI_NET_ADDRESSES * CDI_ADDRESS_TEXT)

/* Listens, and publishes the addresses. CDDP_E_INVALID (CDDP_SOCKET_IFNAME, CDDP_DATA_PORTS), CDDP_E_SYSTEM. */
cddp_status cdi_listener_open(struct cdi_tcp *tcp, const struct cdi_address *reached, struct cdi_error *err);
/* Accepts connections, and admits those of this job. Blocks for 20 ms at most. */
void cdi_listener_accept(struct cdi_tcp *tcp);
/* The same while this rank waits for a socket. Returns whether it is ready. */
bool cdi_listener_accept_or(struct cdi_tcp *tcp, int fd, short events);
/*
 * Returns the slot for one more pending connection: a free one, otherwise the oldest connection of the address that has
 * the most, of those without a hello if there are any. So a foreign host replaces only its own connections, and a
 * silent one none of a rank. Pure.
 */
int cdi_listener_slot(const struct cdi_listener *l);

/* Makes the first frame, both ways, with a new nonce, and copies its contents to *h. Returns false: no random bytes. */
bool cdi_tcp_make_hello(const struct cdi_tcp *tcp, int to, enum cdi_tcp_channel channel,
                        uint8_t out[CDI_TCP_HEADER + CDI_TCP_HELLO], struct cdi_tcp_hello *h);
/* Makes the second frame: the proof of a side of the connection that `client` opens. */
void cdi_tcp_make_proof(const struct cdi_tcp *tcp, enum cdi_auth_side side, const struct cdi_tcp_hello *client,
                        const uint8_t server_nonce[CDI_AUTH_NONCE], uint8_t out[CDI_TCP_HEADER + CDI_TCP_PROOF]);
/* Is it the frame that cdi_tcp_make_proof() makes for these? In constant time. */
bool cdi_tcp_check_proof(const struct cdi_tcp *tcp, enum cdi_auth_side side, const struct cdi_tcp_hello *client,
                         const uint8_t server_nonce[CDI_AUTH_NONCE], const uint8_t in[CDI_TCP_HEADER + CDI_TCP_PROOF]);
/* Is it a hello for this rank? It proves nothing. */
bool cdi_tcp_check_hello(const struct cdi_tcp *tcp, const uint8_t in[CDI_TCP_HEADER + CDI_TCP_HELLO],
                         struct cdi_tcp_hello *h);

/* Sets a socket of a link, to which another thread may be about to send. */
void cdi_tcp_set_socket(struct cdi_tcp *tcp, int *socket, int fd);
/* Moves a socket to another place, so that a child that is forked meanwhile closes its copy. */
void cdi_tcp_move_socket(struct cdi_tcp *tcp, int *to, int *from);
/* Records the process of the peer, for errors. */
void cdi_tcp_name_link(struct cdi_tcp *tcp, struct cdi_link *l, const struct cdi_tcp_hello *h);
/* Create a link for messages with `rank`, or with the same local rank of `node`, without sockets. NULL: out of memory.
 */
struct cdi_link *cdi_tcp_new_pair(struct cdi_tcp *tcp, int rank);
struct cdi_link *cdi_tcp_new_mesh(struct cdi_tcp *tcp, int node);

/* Connects a link with a rank of a higher node. pair: for messages. Blocks (tcp_connect.c). */
cddp_status cdi_tcp_connect(struct cdi_tcp *tcp, struct cdi_link *l, bool pair, int64_t deadline_ms,
                            struct cdi_error *err);
/* Waits until a rank of a lower node has connected a link. */
cddp_status cdi_tcp_await_connection(struct cdi_tcp *tcp, const struct cdi_link *l, int64_t deadline_ms,
                                     struct cdi_error *err);
#define CDI_TCP_FULL_MS 6000 /* after which foreign connections, which may hold all descriptors, are closed */
/* Is this the error of a process, or of a host, that has too many files open? */
static inline bool cdi_tcp_is_full(int errnum)
{
    return errnum == EMFILE || errnum == ENFILE;
}
/* Sets the options that all these sockets have. */
void cdi_tcp_set_options(int fd);

#endif
