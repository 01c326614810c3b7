/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of this node, and those that CUDA shows. Read from files, without CUDA, which is cheap and starts nothing.
 * Any thread. No function fails: anything that cannot be read counts as missing or unknown.
 */
#ifndef CDI_GPUS_H
#define CDI_GPUS_H

#include <stdbool.h>
#include <stddef.h>

#define CDI_GPUS_MAX 256

struct cdi_gpu {
    char uuid[48];  /* "GPU-6f7c...", "" if not known */
    char pci[16];   /* "0000:3b:00.0", "" if not known */
    char model[64]; /* "NVIDIA H200", "" if not known */
    int numa_node;  /* -1: not known, or there is only one */
};

/*
 * Reads this process's GPUs in the order of their PCI addresses, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID or
 * if all cards are of one model. These are the cards that the driver lists under /proc and, in a container, that have
 * device files. If the driver lists none, the device files count, without further facts. `root` is put in front of all
 * paths ("" in production). Returns the number of GPUs in out, at most cap.
 */
size_t cdi_gpus_read(const char *root, struct cdi_gpu *out, size_t cap);

/*
 * Finds the GPUs that this value of CUDA_VISIBLE_DEVICES (NULL: not set) shows. shown[k] is the index in all[] of
 * CUDA's device k; -1: unknown (a MIG instance, or a UUID if no card's is known). Returns their number, at most cap.
 *
 * Reads it as CUDA does: entries between commas, each a number, the beginning of one card's UUID, or a MIG instance.
 * The first entry that is not a device, or of another kind than the first one, ends the list; a device that is named
 * twice empties it; of MIG instances only the first is shown. Pure.
 */
size_t cdi_gpus_visible(const char *variable, const struct cdi_gpu *all, size_t n_all, int *shown, size_t cap);

/* Writes any spelling of a PCI address as "0000:3b:00.0" (CUDA's has capitals, nvidia-smi's a longer domain). Pure. */
bool cdi_gpu_pci(char out[16], const char *address);

/* Returns the NUMA node of the device at this PCI address (as cdi_gpu_pci writes it); -1: unknown. root: as above. */
int cdi_gpu_numa_node(const char *root, const char *pci);

#endif
