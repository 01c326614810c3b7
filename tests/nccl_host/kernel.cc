/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A launched kernel of NCCL: reads the batches of work that NCCL's host code has written for it, and does them through
 * the connections that it has set up. Each channel is a thread, as it is a block on a GPU; so is each direction of a
 * message.
 */

#include "channel.h"

#include "bitops.h"
#include "runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <vector>

/* The handles of all kernels and their names, by build.py. */
struct host_kernel {
    const void *kernel;
    const char *name;
};
extern "C" const host_kernel host_kernels[];

namespace
{

[[noreturn]] void give_up(const char *what, const void *kernel)
{
    const char *name = "?";

    for (int i = 0; host_kernels[i].kernel != nullptr; i++)
        if (host_kernels[i].kernel == kernel)
            name = host_kernels[i].name;
    (void)fprintf(stderr, "nccl_host: %s (%s): run it with the environment of tests/nccl_host\n", what, name);
    _Exit(STANDIN_EXIT);
}

/* By the id of a device function; types of which only the bits matter share one, that of the unsigned type. */
const std::map<int, Function> &functions()
{
    static const std::map<int, Function> all = [] {
        std::map<int, Function> made;

        for (int coll : {ncclFuncAllReduce, ncclFuncReduceScatter, ncclFuncReduce})
            for (int op = 0; op < ncclNumDevRedOps; op++)
                for (int type = 0; type < ncclNumTypes; type++)
                    made[ncclDevFuncId(coll, op, type, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE)] = {coll, op, type};
        for (int coll : {ncclFuncAllGather, ncclFuncBroadcast})
            made[ncclDevFuncId(coll, ncclDevSum, ncclInt8, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE)] = {coll, ncclDevSum,
                                                                                                  ncclUint8};
        made[ncclDevFuncId_P2p()] = {ncclFuncSendRecv, ncclDevSum, ncclUint8};
        made.erase(-1);
        return made;
    }();

    return all;
}

/* Runs all of them at once, the last one on this thread. */
void together(std::vector<std::function<void()>> tasks)
{
    std::vector<std::thread> threads;

    for (size_t i = 0; i + 1 < tasks.size(); i++)
        threads.emplace_back(tasks[i]);
    if (!tasks.empty())
        tasks.back()();
    for (std::thread &t : threads)
        t.join();
}

/* The work of consecutive batches of one channel that belong together. */
struct Batch {
    ncclDevWorkType type;
    int function;
    std::vector<char *> works;
};

std::vector<Batch> batches_of(const ncclDevKernelArgs *args, int block)
{
    const ncclDevWorkBatch *all = reinterpret_cast<const ncclDevWorkBatch *>(args + 1);
    std::vector<Batch> out;
    bool extends = false;

    for (int i = block;; i += all[i].nextJump) {
        const ncclDevWorkBatch &b = all[i];
        ncclDevWorkType type = static_cast<ncclDevWorkType>(b.workType);

        if (!extends)
            out.push_back({type, static_cast<int>(b.funcId), {}});
        for (unsigned bit = 0; bit < 64; bit++) {
            if (((b.offsetBitset >> bit) & 1) == 0)
                continue;
            uint32_t offset = b.offsetBase + bit * static_cast<uint32_t>(ncclDevWorkSize(type));

            out.back().works.push_back(args->workStorageType == ncclDevWorkStorageTypeArgs
                                           ? reinterpret_cast<char *>(const_cast<ncclDevKernelArgs *>(args)) + offset
                                           : static_cast<char *>(args->workBuf) + (offset & args->workMask));
        }
        extends = b.nextExtends;
        if (b.nextJump == 0)
            return out;
    }
}

std::vector<int> channels_of(const ncclDevKernelArgs *args)
{
    std::vector<int> out;

    for (int c = 0; c < MAXCHANNELS; c++)
        if ((args->channelMask >> c) & 1)
            out.push_back(c);
    return out;
}

/* -------------------------------------------------------------------------------------------------------- planted
 * faults */

/* NCCL_HOST_FAULT: rank 1 does its work with one thing wrong, which a test must notice (must_fail.py). */
bool planted(const Channel &c, const char *fault)
{
    static const char *wanted = getenv("NCCL_HOST_FAULT");

    return wanted != nullptr && c.comm->rank == 1 && strcmp(wanted, fault) == 0;
}

void plant(const Channel &c, ncclDevWorkColl *w, Function *f)
{
    int width = ncclTypeSize(static_cast<ncclDataType_t>(f->type));

    if (planted(c, "buffer"))
        w->recvbuff = host_alloc(size_t{64} << 20);
    if (planted(c, "count") && w->cbd.countLo > 0)
        w->cbd.countLo--;
    if (planted(c, "offset"))
        w->sendbuff = static_cast<char *>(w->sendbuff) + width;
    if (planted(c, "operation"))
        f->op = f->op == ncclDevProd ? ncclDevSum : ncclDevProd;
    if (planted(c, "root"))
        w->root = (w->root + 1) % static_cast<uint32_t>(c.comm->nRanks);
}

void plant(const Channel &c, ncclDevWorkP2p *w)
{
    if (planted(c, "peer") && w->sendRank != 1)
        w->sendRank = 2 - w->sendRank;
}

/* ------------------------------------------------------------------------------------------------------------ messages
 */

/* This channel's part of a message; it has none if the channel is not among those of the message. */
struct Message {
    char *at;
    size_t bytes;
    bool exists;
};

Message part_of(const ncclDevWorkP2p *w, int channel, bool send)
{
    int parts = send ? w->nSendChannels : w->nRecvChannels;
    int part = ncclP2pChannelToPart(w->nP2pChannels, w->channelBase, channel);
    char *at = static_cast<char *>(standin_host(send ? w->sendAddr : w->recvAddr));
    size_t begin = 0, end = 0;

    if (parts > 0)
        ncclP2pPartBounds(parts, part, send ? w->sendBytes : w->recvBytes, &begin, &end);
    return {at + begin, end - begin, part < parts};
}

/* The low-latency protocol, which NCCL takes for empty messages whatever its limit is: a step without data. */
void pass_empty(const Channel &c, int peer, bool send)
{
    ncclConnInfo *conn = send ? &c.at->peers[peer]->send[1] : &c.at->peers[peer]->recv[1];

    if (send && conn->connFifo != nullptr)
        conn->connFifo[conn->step % NCCL_STEPS].size = 0;
    conn->step++;
    if (!send)
        __atomic_store_n(conn->head, conn->step, __ATOMIC_RELEASE);
}

void pass(const Channel &c, const Function &f, const Message &m, int peer, size_t chunk, bool send)
{
    Peers peers(c, f, 0, send ? -1 : peer, send ? peer : -1, 1, 1, 1, static_cast<size_t>(c.comm->p2pChunkSize));
    size_t at = 0;

    do {
        size_t n = std::min(chunk, m.bytes - at);
        Data d = {send ? m.at + at : nullptr, send ? nullptr : m.at + at, false, false};

        if (!peers.move(!send, send, d, static_cast<ssize_t>(n)))
            return;
        at += n;
    } while (at < m.bytes);
}

void run_messages(const Channel &c, const Function &f, const Batch &b)
{
    std::vector<std::function<void()>> tasks;

    for (char *at : b.works) {
        ncclDevWorkP2p planned = *reinterpret_cast<const ncclDevWorkP2p *>(at), *w = &planned;

        plant(c, w);
        Message sent = part_of(w, c.id, true), received = part_of(w, c.id, false);

        if (w->sendRank == c.comm->rank) {
            memmove(received.at, sent.at, sent.bytes);
            continue;
        }
        if (sent.exists && w->sendProtoLL)
            pass_empty(c, w->sendRank, true);
        else if (sent.exists)
            tasks.push_back(
                [=, &c, &f] { pass(c, f, sent, planned.sendRank, u32fp8Decode(planned.sendChunkSize_u32fp8), true); });
        if (received.exists && w->recvProtoLL)
            pass_empty(c, w->recvRank, false);
        else if (received.exists)
            tasks.push_back([=, &c, &f] {
                pass(c, f, received, planned.recvRank, u32fp8Decode(planned.recvChunkSize_u32fp8), false);
            });
    }
    together(tasks);
}

/* ------------------------------------------------------------------------------------------------------------ a
 * channel */

/* What the connections here cannot do: the environment of the tests keeps NCCL from asking for it. */
const char *missing(const Batch &b)
{
    for (char *at : b.works) {
        const ncclDevWorkP2p *m = reinterpret_cast<const ncclDevWorkP2p *>(at);
        const ncclDevWorkColl *w = reinterpret_cast<const ncclDevWorkColl *>(at);

        if (b.type == ncclDevWorkTypeP2p &&
            (m->sendNetReg || m->recvNetReg || m->sendIpcReg || m->recvIpcReg || (m->sendProtoLL && m->sendBytes > 0) ||
             (m->recvProtoLL && m->recvBytes > 0)))
            return "a message by another protocol or registered memory";
        if (b.type == ncclDevWorkTypeColl && (w->regUsed || w->netRegUsed))
            return "a collective on registered memory";
    }
    return b.type == ncclDevWorkTypeP2p || b.type == ncclDevWorkTypeColl ? nullptr : "another kind of work";
}

void run_channel(const void *kernel, const ncclDevKernelArgs *args, int block, int id)
{
    Channel c = {args->comm, &args->comm->channels[id], id};

    for (const Batch &b : batches_of(args, block)) {
        auto f = functions().find(b.function);
        const char *what = f == functions().end() ? "another algorithm or protocol" : missing(b);

        if (what != nullptr)
            give_up(what, kernel);
        if (b.type == ncclDevWorkTypeP2p) {
            run_messages(c, f->second, b);
            continue;
        }
        for (char *at : b.works) {
            ncclDevWorkColl w = *reinterpret_cast<const ncclDevWorkColl *>(at);
            Function function = f->second;

            plant(c, &w, &function);
            if (!run_collective(c, function, &w))
                return;
        }
    }
}

} // namespace

void host_kernel_run(const void *kernel, const void *block)
{
    const ncclDevKernelArgs *args = static_cast<const ncclDevKernelArgs *>(block);
    std::vector<int> channels = channels_of(args);
    std::vector<std::function<void()>> tasks;

    for (size_t i = 0; i < channels.size(); i++)
        tasks.push_back([=] { run_channel(kernel, args, static_cast<int>(i), channels[i]); });
    together(tasks);
}

/* What one work item reads and writes; the stand-in looks at memory of the program only. */
static void add(standin_ranges *r, const void *at, size_t bytes, bool write)
{
    if (bytes > 0 && standin_host(at) != at)
        (write ? standin_writes : standin_reads)(r, at, bytes);
}

static void ranges_of(const Function &f, const ncclDevWorkColl *w, int n_ranks, int rank, standin_ranges *r)
{
    size_t mid = static_cast<size_t>(std::max(0, static_cast<int>(w->channelHi) - static_cast<int>(w->channelLo) - 1));
    size_t bytes = (w->cbd.countLo + mid * w->cbd.countMid + w->cbd.countHi) *
                   static_cast<size_t>(ncclTypeSize(static_cast<ncclDataType_t>(f.type)));
    size_t all = bytes * static_cast<size_t>(n_ranks);
    bool rooted = f.coll == ncclFuncBroadcast || f.coll == ncclFuncReduce, is_root = static_cast<int>(w->root) == rank;

    if (f.coll != ncclFuncBroadcast || is_root)
        add(r, w->sendbuff, f.coll == ncclFuncReduceScatter ? all : bytes, false);
    if (!rooted || f.coll == ncclFuncBroadcast || is_root)
        add(r, w->recvbuff, f.coll == ncclFuncAllGather ? all : bytes, true);
}

/* At the launch. The work of a graph is copied to the device later, so it is not known here. */
void host_kernel_ranges(const void *, const void *block, standin_ranges *r)
{
    const ncclDevKernelArgs *args = static_cast<const ncclDevKernelArgs *>(block);

    if (args->workStorageType == ncclDevWorkStorageTypePersistent)
        return;
    for (size_t i = 0; i < channels_of(args).size(); i++) {
        for (const Batch &b : batches_of(args, static_cast<int>(i))) {
            auto f = functions().find(b.function);

            for (char *at : b.works) {
                const ncclDevWorkP2p *m = reinterpret_cast<const ncclDevWorkP2p *>(at);

                if (b.type == ncclDevWorkTypeP2p && m->nSendChannels > 0)
                    add(r, m->sendAddr, m->sendBytes, false);
                if (b.type == ncclDevWorkTypeP2p && m->nRecvChannels > 0)
                    add(r, m->recvAddr, m->recvBytes, true);
                if (b.type == ncclDevWorkTypeColl && f != functions().end())
                    ranges_of(f->second, reinterpret_cast<const ncclDevWorkColl *>(at), args->comm->nRanks,
                              args->comm->rank, r);
            }
        }
    }
}
