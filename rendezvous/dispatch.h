/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides what a connection is and serves it: detects the protocol, checks the auth token, and hands the bytes to the
 * store, to a job's session or to the HTTP pages. On top of conn.h, which calls it through these operations.
 */
#ifndef RDZV_DISPATCH_H
#define RDZV_DISPATCH_H

#include "rendezvous/conn.h"

extern const struct conn_ops dispatch_ops;

#endif
