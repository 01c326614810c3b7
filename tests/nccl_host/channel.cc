/* SPDX-License-Identifier: Apache-2.0 */

#include "channel.h"

#include "runtime.h"

#include <algorithm>
#include <cstring>
#include <sched.h>
#include <unistd.h>

bool Channel::aborted() const
{
    return __atomic_load_n(comm->abortFlag, __ATOMIC_ACQUIRE) != 0;
}

static uint64_t round_up(uint64_t x, uint64_t to)
{
    return (x + to - 1) / to * to;
}

Peers::Peers(const Channel &c, const Function &f, uint64_t arg, int recv_peer, int send_peer, int connection,
             int n_slices, int n_steps, size_t n_elements)
    : channel(c), function(f), argument(arg), slices(n_slices), steps(n_steps),
      width(static_cast<size_t>(ncclTypeSize(static_cast<ncclDataType_t>(f.type)))),
      step_elements(n_elements != 0 ? n_elements
                                    : static_cast<size_t>(c.comm->buffSizes[NCCL_PROTO_SIMPLE]) / NCCL_STEPS / width)
{
    uint64_t chunk = static_cast<uint64_t>(slices) * static_cast<uint64_t>(steps);

    if (recv_peer >= 0) {
        in.conn = &c.at->peers[recv_peer]->recv[connection];
        in.step = round_up(in.conn->step, chunk);
        __atomic_store_n(in.conn->head, in.step, __ATOMIC_RELEASE);
    }
    if (send_peer >= 0) {
        out.conn = &c.at->peers[send_peer]->send[connection];
        out.step = round_up(out.conn->step, chunk);
    }
}

Peers::~Peers()
{
    if (in.conn != nullptr)
        in.conn->step = in.step;
    if (out.conn != nullptr)
        out.conn->step = out.step;
}

char *Peers::slot(const End &e) const
{
    const ncclConnFifo *fifo = e.conn->connFifo;
    uint64_t i = e.step % NCCL_STEPS;
    char *buffer = e.conn->buffs[NCCL_PROTO_SIMPLE];

    return fifo != nullptr && fifo[i].mode == NCCL_MODE_OFFSET
               ? buffer + __atomic_load_n(&fifo[i].offset, __ATOMIC_RELAXED)
               : buffer + i * static_cast<uint64_t>(e.conn->stepSize);
}

/* A sender's counter begins below zero where the proxy hands out the slots: the sum wraps around. */
bool Peers::await(const uint64_t *counter, uint64_t ahead, uint64_t target) const
{
    for (unsigned turn = 0; __atomic_load_n(counter, __ATOMIC_ACQUIRE) + ahead < target; turn++) {
        if (turn % 64 == 63 && channel.aborted())
            return false;
        if (turn < 64)
            (void)sched_yield();
        else
            (void)usleep(turn < 256 ? 20 : 200);
    }
    return true;
}

bool Peers::slice(bool recv, bool send, const Data &d, size_t offset, size_t elements)
{
    const uint64_t n = static_cast<uint64_t>(steps);
    char *result = d.to != nullptr ? d.to + offset * width : nullptr;
    const char *own = d.from != nullptr ? d.from + offset * width : nullptr, *theirs = nullptr;

    if (recv && !await(in.conn->tail, 0, in.step + n))
        return false;
    if (send && !await(out.conn->head, NCCL_STEPS, out.step + n))
        return false;
    if (send && out.conn->connFifo != nullptr)
        out.conn->connFifo[out.step % NCCL_STEPS].size = static_cast<ssize_t>(elements * width);
    if (recv)
        theirs = slot(in);
    if (send) {
        char *sent = slot(out);

        reduce_elements(function, argument, sent, own != nullptr ? own : theirs, own != nullptr ? theirs : nullptr,
                        elements, d.input && own != nullptr, d.post);
        if (result != nullptr)
            memcpy(result, sent, elements * width);
    } else if (result != nullptr) {
        reduce_elements(function, argument, result, own != nullptr ? own : theirs, own != nullptr ? theirs : nullptr,
                        elements, d.input && own != nullptr, d.post);
    }
    if (recv) {
        in.step += n;
        __atomic_store_n(in.conn->head, in.step, __ATOMIC_RELEASE);
    }
    if (send) {
        out.step += n;
        __atomic_store_n(out.conn->tail, out.step, __ATOMIC_RELEASE);
    }
    return true;
}

bool Peers::move(bool recv, bool send, const Data &d, ssize_t n)
{
    size_t elements = n > 0 ? static_cast<size_t>(n) : 0, part = static_cast<size_t>(slices), offset = 0;
    size_t size =
        std::max((elements + 16 * part - 1) / (16 * part) * 16, step_elements * static_cast<size_t>(steps) / 32);

    for (int i = 0; i < slices; i++) {
        size = std::min(size, elements - offset);
        if (!slice(recv, send, d, offset, size))
            return false;
        offset += size;
    }
    return true;
}

/* ---------------------------------------------------------------------------------------------- collectives, by rings
 */

namespace
{

struct Part {
    ssize_t count, offset, length, chunk; /* of each rank; of this channel; of one step */
};

struct Ring {
    const Channel &c;
    const Function &f;
    const ncclDevWorkColl *work;
    Part part;
    Peers &peers;
    int n, width;

    const char *in(ssize_t i) const
    {
        return static_cast<const char *>(standin_host(work->sendbuff)) + i * width;
    }
    char *out(ssize_t i) const
    {
        return static_cast<char *>(standin_host(work->recvbuff)) + i * width;
    }
    /* The rank that is i places after this one. */
    int rank(int i) const
    {
        return c.at->ring.userRanks[i];
    }
};

bool all_reduce(const Ring &r)
{
    ssize_t chunk = r.part.chunk;

    for (ssize_t at = 0; at < r.part.length; at += r.n * r.part.chunk) {
        ssize_t left = r.part.length - at;

        if (left < r.n * chunk)
            chunk = static_cast<ssize_t>(
                round_up(static_cast<uint64_t>((left + r.n - 1) / r.n), static_cast<uint64_t>(16 / r.width)));
        auto offset = [&](int i) { return r.part.offset + at + (i % r.n) * chunk; };
        auto length = [&](int i) { return std::min(chunk, left - (i % r.n) * chunk); };
        int me = r.c.at->ring.index;

        if (!r.peers.move(false, true, {r.in(offset(me + r.n - 1)), nullptr, true, false}, length(me + r.n - 1)))
            return false;
        for (int j = 2; j < r.n; j++)
            if (!r.peers.move(true, true, {r.in(offset(me + r.n - j)), nullptr, true, false}, length(me + r.n - j)))
                return false;
        if (!r.peers.move(true, true, {r.in(offset(me)), r.out(offset(me)), true, true}, length(me)))
            return false;
        for (int j = 1; j < r.n - 1; j++)
            if (!r.peers.move(true, true, {nullptr, r.out(offset(me + r.n - j)), false, false}, length(me + r.n - j)))
                return false;
        if (!r.peers.move(true, false, {nullptr, r.out(offset(me + 1)), false, false}, length(me + 1)))
            return false;
    }
    return true;
}

bool all_gather(const Ring &r)
{
    for (ssize_t at = 0; at < r.part.length; at += r.part.chunk) {
        ssize_t n = std::min(r.part.chunk, r.part.length - at), offset = r.part.offset + at;
        bool in_place = r.in(offset) == r.out(offset + r.rank(0) * r.part.count);

        if (!r.peers.move(false, true,
                          {r.in(offset), in_place ? nullptr : r.out(offset + r.rank(0) * r.part.count), true, false},
                          n))
            return false;
        for (int j = 1; j < r.n - 1; j++)
            if (!r.peers.move(true, true, {nullptr, r.out(offset + r.rank(r.n - j) * r.part.count), false, false}, n))
                return false;
        if (!r.peers.move(true, false, {nullptr, r.out(offset + r.rank(1) * r.part.count), false, false}, n))
            return false;
    }
    return true;
}

bool reduce_scatter(const Ring &r)
{
    for (ssize_t at = 0; at < r.part.length; at += r.part.chunk) {
        ssize_t n = std::min(r.part.chunk, r.part.length - at), offset = r.part.offset + at;

        if (!r.peers.move(false, true, {r.in(offset + r.rank(r.n - 1) * r.part.count), nullptr, true, false}, n))
            return false;
        for (int j = 2; j < r.n; j++)
            if (!r.peers.move(true, true, {r.in(offset + r.rank(r.n - j) * r.part.count), nullptr, true, false}, n))
                return false;
        if (!r.peers.move(true, false, {r.in(offset + r.rank(0) * r.part.count), r.out(offset), true, true}, n))
            return false;
    }
    return true;
}

bool broadcast(const Ring &r)
{
    int root = static_cast<int>(r.work->root);

    for (ssize_t at = 0; at < r.part.length; at += r.part.chunk) {
        ssize_t n = std::min(r.part.chunk, r.part.length - at), offset = r.part.offset + at;
        bool good;

        if (r.rank(0) == root)
            good = r.peers.move(false, true, {r.in(offset), r.in(0) == r.out(0) ? nullptr : r.out(offset), true, false},
                                n);
        else
            good = r.peers.move(true, r.rank(1) != root, {nullptr, r.out(offset), false, false}, n);
        if (!good)
            return false;
    }
    return true;
}

bool reduce(const Ring &r)
{
    int root = static_cast<int>(r.work->root);

    for (ssize_t at = 0; at < r.part.length; at += r.part.chunk) {
        ssize_t n = std::min(r.part.chunk, r.part.length - at), offset = r.part.offset + at;
        bool is_root = r.rank(0) == root, first = r.rank(r.n - 1) == root;

        if (!r.peers.move(!first, !is_root, {r.in(offset), is_root ? r.out(offset) : nullptr, true, is_root}, n))
            return false;
    }
    return true;
}

/* NCCL's steps of a chunk, and its slices. */
const struct {
    int coll, slice_steps, chunk_steps;
    bool (*run)(const Ring &);
} collectives[] = {
    {ncclFuncAllReduce, ALLREDUCE_SLICESTEPS, ALLREDUCE_CHUNKSTEPS, all_reduce},
    {ncclFuncAllGather, ALLGATHER_SLICESTEPS, ALLGATHER_CHUNKSTEPS, all_gather},
    {ncclFuncReduceScatter, REDUCESCATTER_SLICESTEPS, REDUCESCATTER_CHUNKSTEPS, reduce_scatter},
    {ncclFuncBroadcast, BROADCAST_SLICESTEPS, BROADCAST_CHUNKSTEPS, broadcast},
    {ncclFuncReduce, REDUCE_SLICESTEPS, REDUCE_CHUNKSTEPS, reduce},
};

} // namespace

bool run_collective(const Channel &c, const Function &f, ncclDevWorkColl *work)
{
    int width = ncclTypeSize(static_cast<ncclDataType_t>(f.type));
    uint64_t argument = work->redOpArgIsPtr
                            ? reduce_argument(standin_host(reinterpret_cast<void *>(work->redOpArg)), f.type)
                            : work->redOpArg;
    Part p;

    ncclCollCbdPart(work, static_cast<uint32_t>(c.id), NCCL_PROTO_SIMPLE, width, &p.count, &p.offset, &p.length,
                    &p.chunk);
    for (const auto &known : collectives) {
        if (known.coll != f.coll)
            continue;
        Peers peers(c, f, argument, c.at->ring.prev, c.at->ring.next, 0, known.chunk_steps / known.slice_steps,
                    known.slice_steps, 0);

        return known.run({c, f, work, p, peers, c.comm->nRanks, width});
    }
    return true;
}
