/* SPDX-License-Identifier: Apache-2.0 */
/* How connections between nodes begin: listening, letting in, what both sides say first. For tcp_*.c. */
#ifndef CDI_NET_TCP_LISTENER_H
#define CDI_NET_TCP_LISTENER_H

#include "worker/backend/cpu/net/tcp.h"

#define CDI_TCP_ADDRESS_TEXT (CDI_NET_ADDRESSES * CDI_ADDRESS_TEXT)

/* Listen, and tell the meeting place where. CDDP_E_INVALID (CDDP_SOCKET_IFNAME), CDDP_E_SYSTEM. */
cddp_status cdi_door_open(struct cdi_tcp *tcp, const struct cdi_address *reached, struct cdi_error *err);
/* Accepts connections, and lets in those of this job. Blocks for 20 ms at most. */
void cdi_door_tend(struct cdi_tcp *tcp);
/*
 * Returns the place for one more connection: a vacant one, else the oldest of the host that has the most. So a stranger
 * pushes out only its own connections. Pure.
 */
int cdi_door_place(const struct cdi_door *d);

/* The first frame, both ways. */
void cdi_tcp_hello_of(const struct cdi_tcp *tcp, int to, enum cdi_tcp_channel channel,
                      uint8_t out[CDI_TCP_HEADER + CDI_TCP_HELLO]);
/* A hello of this job, for this rank; nothing of it is believed before the token was. */
bool cdi_tcp_believe(const struct cdi_tcp *tcp, const uint8_t in[CDI_TCP_HEADER + CDI_TCP_HELLO],
                     struct cdi_tcp_hello *h);

/* Changes a socket of a link, to which another thread may be about to send. */
void cdi_tcp_set_place(struct cdi_tcp *tcp, int *place, int fd);
/* Notes the process on the other side, for errors. */
void cdi_tcp_name_link(struct cdi_tcp *tcp, struct cdi_link *l, const struct cdi_tcp_hello *h);
/* A link for messages with `rank`, without sockets. NULL: out of memory. */
struct cdi_link *cdi_tcp_new_pair(struct cdi_tcp *tcp, int rank);
void cdi_tcp_set_options(int fd);

#endif
