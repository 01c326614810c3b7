/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: the state of a job in one file, or a file of each rank, whole or not at all. */
#ifndef CDDP_CHECKPOINT_H
#define CDDP_CHECKPOINT_H

#include <cddp/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------------------- checkpoints ---- */

/* What an item of a checkpoint is. */
typedef enum cddp_item_kind {
    CDDP_ITEM_MEMORY = 0,  /* `bytes` bytes at `data`: parameters, a step counter */
    CDDP_ITEM_SAMPLER = 1, /* `data` is a cddp_sampler: its place in the data, which loading moves */
    CDDP_ITEM_OPTIM = 2,   /* `data` is a cddp_optim: its whole state, of all ranks */
    CDDP_ITEM_DDP = 3,     /* `data` is a cddp_ddp: what its compression (PowerSGD) has not sent yet, of all ranks */
    CDDP_ITEM_FSDP = 4,    /* `data` is a cddp_fsdp (experimental): its parameters, of which each rank has a part */
    CDDP_ENUM_32(CDDP_ITEM)
} cddp_item_kind;

/* cddp_checkpoint_item.flags. */
enum {
    /*
     * Each rank's memory is its own: the state of a random number generator, a loss so far. All ranks name the same
     * such items, of the same size and in the same order. Loaded, each rank gets what the rank of its number saved, and
     * a rank of a number that did not exist then keeps its memory as it is. Meant for little: all of it passes through
     * rank 0, unless the checkpoint is sharded. For CDDP_ITEM_MEMORY only.
     */
    CDDP_ITEM_PER_RANK = 1
};

/*
 * A piece of a job's state. A checkpoint holds any number of each kind, told apart by their names: two optimizers, two
 * samplers and two reducers of a GAN, say.
 *
 * - Memory is the caller's, on the host or on the backend's GPU (then nothing may be writing it). Rank 0's is
 *   everyone's, unless flags say otherwise. With CDDP_DEBUG=1 a save logs, once, an item on the host that differs among
 *   the ranks.
 * - A sampler's place is each rank's own. Ranks may stand at different places, as with uneven inputs: a world of as
 *   many ranks goes on exactly there. In a world of another size all ranks begin at the first of these places, so that
 *   no sample is lost and some come again; rank 0 logs it (cddp_log). Where all stand at the same place, as usual, a
 *   world of any size goes on there. The places are NAME.ranks in the file, so no other item may have this name.
 * - An optimizer's state lies whole in the file: a world of another size loads it, too, and each rank gets its new
 *   share. Its parts are named NAME.exp_avg, NAME.exp_avg_sq or NAME.momentum_buffer, as PyTorch has them, NAME.steps,
 *   NAME.params (to compare these) and NAME.master (the float32 copies of parameters of 16 bits), of tied parameters
 *   once. Parameters are separate
 *   items, tied ones one. Learning rate and
 *   other options are not in it: those of cddp_optim_create count. Parameters of 16 bits that are loaded as memory need
 *   this item, or are loaded before cddp_optim_create: an optimizer goes on from its own copies of them.
 * - A reducer's state is PowerSGD's: steps, random numbers, each Q, and what each rank has left out. A run that loads
 *   it after cddp_ddp_set_powersgd, with the same options, the same buckets and as many ranks, goes on as one that was
 *   never stopped, bit for bit. With other buckets random numbers may fall to other gradients. With another number of
 *   ranks each goes on with the mean of what all had left out, so that nothing is lost. A reducer without PowerSGD may
 *   be an item, too, and has no state. Both the checkpoint and the reducer have PowerSGD, or neither.
 * - A sharded model's parameters are items of memory in the file, each with its own name, which follows the item's and
 *   a dot unless the item's name is "". So their names differ, and a program that has whole parameters loads and saves
 *   the same checkpoints with items of these names. Stage and units may differ. No unit is held when one is loaded. If
 *   its optimizer is not loaded as well, it goes on from the loaded parameters.
 *
 * Optimizers, reducers and sharded models are of the communicator that saves or loads, and between two steps. Rank 0
 * holds all of the states of optimizers and reducers in host memory meanwhile, the others nothing more than their own;
 * in a sharded checkpoint no rank holds more than its own of optimizers.
 */
typedef struct cddp_checkpoint_item {
    size_t size;         /* sizeof(cddp_checkpoint_item), in each of an array */
    const char *name;    /* unique; 1 to 255 bytes (200 for objects, 240 with CDDP_ITEM_PER_RANK); "" with
                            CDDP_ITEM_FSDP: nothing before the parameters' names */
    void *data;          /* memory, or the object */
    size_t bytes;        /* of memory; else 0 */
    cddp_item_kind kind; /* 0: memory */
    uint32_t flags;      /* CDDP_ITEM_PER_RANK; 0: none */
} cddp_checkpoint_item;

/* cddp_checkpoint_options.flags. */
enum {
    /*
     * Every rank writes its part, at once, and nothing large passes through one of them: DIR/checkpoint-STEP.cddp is a
     * folder with a file of each rank and an index. It appears as a whole, too. All ranks share `dir`, and pass all
     * items. Each writes its own of optimizers, of sharded models and of items with CDDP_ITEM_PER_RANK, and an equal
     * part of other memory of at least 64 KiB, which is the same on all. Smaller memory, samplers and reducers are
     * rank 0's. CDDP_ITEM_FSDP implies the flag.
     */
    CDDP_CHECKPOINT_SHARDED = 1
};

typedef struct cddp_checkpoint_options {
    size_t size;    /* sizeof(cddp_checkpoint_options) */
    int keep;       /* how many of the newest checkpoints stay in the directory; 0: the library's choice; < 0: all */
    int background; /* 1: return once the items were copied; a thread writes them while training goes on */
    uint64_t flags; /* CDDP_CHECKPOINT_SHARDED; 0: rank 0 writes one file */
} cddp_checkpoint_options;

typedef struct cddp_checkpoint_info {
    size_t size;       /* sizeof(cddp_checkpoint_info), set by the caller */
    uint64_t step;     /* of the checkpoint that was loaded */
    size_t n_damaged;  /* newer ones that were passed over, since they were cut short or changed */
    char damaged[512]; /* about the newest of these; "" if there is none */
} cddp_checkpoint_info;

/*
 * Saves the items as the file, or the folder of files, DIR/checkpoint-STEP.cddp, where STEP has 20 digits
 * (checkpoint-00000000000000000007.cddp), so that names sort by step: whole or not at all, even if the machine stops in
 * the middle (a temporary file, fsync, rename, fsync of the directory). There is one exception: a file system that
 * cannot exchange two names, such as NFS, has neither for a moment when a save replaces a folder of the same step, and
 * a kill in it loses this step, but no older one. The directory is made if its parent exists. Then it removes older
 * checkpoints beyond `keep`, and those of later steps, which are left over from an abandoned run of the job. It
 * replaces and removes only those that rank 0's process has saved itself, or that were there when it loaded. Where dir
 * holds another whole one, the save does nothing: so a run that starts anew does not remove what an earlier run has
 * saved, and a second job that saves there is detected. A collective: every rank calls it, and all get the same result,
 * so that all take the same branch. All ranks pass equal options (opt may be NULL), and of a sharded checkpoint the
 * same step and directory; otherwise rank 0's step and directory count, as ranks with uneven inputs may be at other
 * steps. Options and these steps are compared before anything is written or removed. All ranks name the same samplers,
 * optimizers, reducers, and items with CDDP_ITEM_PER_RANK, in the same order. Other memory is read on rank 0 only,
 * unless the checkpoint is sharded.
 *
 * In the background the items may be written to again, and objects may be used and destroyed, as soon as it returns.
 * The rank that writes them holds a copy until the file is there: of memory that is on its GPU there, if at least twice
 * as much is free; else on the host. A save that is not in the background copies no memory: it writes the GPU's memory
 * straight to the file. One save at a time is under way: the next one waits for it. If it failed, the next save, or
 * cddp_checkpoint_wait, whichever comes first, returns its error on all ranks, and does nothing.
 *
 * Returns CDDP_OK; CDDP_E_INVALID (also an object of another communicator); CDDP_E_SYSTEM (the error message names file
 * and cause: a full disk leaves the older checkpoints as they were); CDDP_E_MISMATCH (the ranks pass different steps,
 * options or items: the error message names a rank, and both values or the item); CDDP_E_EXISTS (dir holds a checkpoint
 * that this run has neither loaded nor saved: load it, save into another directory, or remove it); CDDP_E_STATE (an
 * optimizer or a reducer in the middle of a step, or gone); CDDP_E_UNSUPPORTED (a newer header's struct); CDDP_E_NOMEM;
 * or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_checkpoint_save(cddp_comm *comm, const char *dir, uint64_t step,
                                                         const cddp_checkpoint_item *items, size_t n_items,
                                                         const cddp_checkpoint_options *opt);
/*
 * Returns once no save in the background is under way on comm, with the error of the last one if no call has returned
 * it yet. A collective. A program calls it before it ends; cddp_finalize waits as well, and returns such an error on
 * rank 0, and on the rank whose part of a sharded one failed. Returns CDDP_OK, CDDP_E_INVALID, the save's error, or
 * what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_checkpoint_wait(cddp_comm *comm);
/*
 * Loads the newest whole checkpoint in dir into the items: memory gets the same bytes on every rank, samplers move, and
 * optimizers and reducers get their states. Rank 0 reads, checks every checksum, and hands out; so dir need exist on
 * rank 0's node only. Of a sharded checkpoint, or for a CDDP_ITEM_FSDP, every rank reads what it needs, and all share
 * the work of the checksums: then all need the directory. The world may have another size than the one that saved, and
 * it does not matter whether the save was sharded. All or nothing: no item changes, on any rank, before all of them are
 * known to fit on every rank. After that only a disk or a rank that fails can leave items half loaded. A collective:
 * every rank passes items of the same names, kinds, sizes and flags, and all get the same result. What the file holds
 * beside the items asked for is left alone. A save in the background is waited for. info may be NULL: then rank 0 logs
 * (cddp_log) a damaged checkpoint that was passed over.
 *
 * Returns CDDP_OK; CDDP_E_INVALID; CDDP_E_NOT_FOUND (no checkpoint there: start afresh); CDDP_E_IO (there are some, and
 * none is whole; the message names the file, and of a sharded one the rank whose file is missing or of another save);
 * CDDP_E_VERSION (of another version's format); CDDP_E_SYSTEM (a file that a rank cannot read, or that is not on its
 * node, may be whole: no older one is taken instead; or a rank's directory has another checkpoint of this step);
 * CDDP_E_NOMEM; CDDP_E_UNSUPPORTED; CDDP_E_STATE (as of cddp_checkpoint_save); or what a collective may return.
 * CDDP_E_MISMATCH: an item is missing in the file, or has another size or kind there; the ranks' items differ; a
 * sampler stands in the middle of an epoch of another order, or the ranks' samplers stood in different orders and the
 * world has another size; an optimizer's state is of another rule (those of Adam and AdamW are alike), or of parameters
 * of other names, sizes, types, frozen otherwise or in another order; PowerSGD's state is of other options or shapes,
 * or only one of checkpoint and reducer has one. The error message names the item.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_checkpoint_load(cddp_comm *comm, const char *dir,
                                                         const cddp_checkpoint_item *items, size_t n_items,
                                                         cddp_checkpoint_info *info);

#ifdef __cplusplus
}
#endif

#endif
