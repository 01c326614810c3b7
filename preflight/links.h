/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real connections between the nodes, on the ports that training would use. A node serves all others in threads, which
 * last until the process ends or becomes another program.
 *
 * The protocol: a client sends a nonce (32 bytes) and a letter, and receives the server's nonce. Then the client and
 * after it the server prove the job's token (cdi_auth_proof, the letter as its kind). After 'p' each further byte is
 * answered with the server's Unix time in ns (8 bytes, big-endian). After 's' the server reads until the connection
 * ends.
 */
#ifndef PREFLIGHT_LINKS_H
#define PREFLIGHT_LINKS_H

#include "preflight/facts.h"
#include "protocol/auth.h"
#include "worker/base/interfaces.h"

#define LINKS_TEXT (CDI_NET_ADDRESSES * (CDI_ADDRESS_TEXT + 1)) /* "a:1 b:2", as a node publishes it */

/*
 * Listens, and starts to serve those that prove the token. reached: this node's address in the connection to the
 * rendezvous. Writes the addresses to text. The errors of cdi_net_choose and cdi_data_listen; CDDP_E_SYSTEM.
 */
cddp_status links_serve(const struct cdi_address *reached, int rank, const struct cdi_secret *token,
                        char text[LINKS_TEXT], struct cdi_error *err);

/* A node to be reached, and the answer. */
struct links_target {
    uint32_t node;
    char text[LINKS_TEXT]; /* its addresses; "": it has not published them */
    struct cdi_secret token;
    bool reached;
    int64_t clock_ns, error_ns; /* this clock minus its; half of the shortest round trip */
    char why[160];
};

/* Reaches all targets at once, a thread for each, and compares the clocks. Blocks for timeout_ms at most, or so. */
void links_reach(struct links_target *targets, size_t n, int64_t timeout_ms);

/*
 * Sends to a node for window_ms, and returns how much of it the other kernel has acknowledged in that time, in MiB/s;
 * 0: it could not be reached. Blocks for window_ms and at most timeout_ms to connect.
 */
double links_rate(const struct links_target *t, int64_t window_ms, int64_t timeout_ms);

/*
 * The node with which `node` exchanges data in a round, of n nodes: in rounds 0 to links_rounds(n) - 1 each pair meets
 * once (the circle method). UINT32_MAX: none in this round. Pure.
 */
uint32_t links_partner(uint32_t node, uint32_t n, uint32_t round);
uint32_t links_rounds(uint32_t n);

#endif
