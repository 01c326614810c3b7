/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's connections of one channel, as NCCL's "Simple" protocol uses them: slots of a buffer, a counter of the slots
 * that the sender has filled (tail) and one of those that the receiver has emptied (head). The proxy of a transport
 * between nodes moves the slots by the same counters, so the steps here are exactly those that NCCL's host code has
 * told it.
 */
#ifndef NCCL_HOST_CHANNEL_H
#define NCCL_HOST_CHANNEL_H

#include "reduce.h"

#include <sys/types.h>

struct Channel {
    const ncclKernelComm *comm;
    ncclDevChannel *at;
    int id;

    bool aborted() const;
};

/* Data of the program for one step: NULL where it takes no part. */
struct Data {
    const char *from;
    char *to;
    bool input; /* `from` is this rank's contribution to a reduction */
    bool post;  /* the reduction is complete */
};

class Peers
{
  public:
    /* A peer of -1: none in this direction. step_elements: elements of a slot; 0: all of it. */
    Peers(const Channel &c, const Function &f, uint64_t argument, int recv_peer, int send_peer, int connection,
          int slices, int steps, size_t step_elements);
    ~Peers();
    Peers(const Peers &) = delete;
    Peers &operator=(const Peers &) = delete;

    /* Moves one chunk: receives it, combines it with `from`, stores it in `to` and sends it on. False: aborted. */
    bool move(bool recv, bool send, const Data &d, ssize_t elements);

  private:
    struct End {
        ncclConnInfo *conn = nullptr;
        uint64_t step = 0;
    };

    char *slot(const End &e) const;
    bool await(const uint64_t *counter, uint64_t ahead, uint64_t target) const;
    bool slice(bool recv, bool send, const Data &d, size_t offset, size_t elements);

    const Channel &channel;
    const Function &function;
    const uint64_t argument;
    const int slices, steps;
    const size_t width, step_elements;
    End in, out;
};

/* Runs one collective's part of a channel. False: aborted. */
bool run_collective(const Channel &c, const Function &f, ncclDevWorkColl *work);

#endif
