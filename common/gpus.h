/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which GPUs does this machine have, and which of them does CUDA show? Read from files, without CUDA, so that asking is
 * cheap and starts nothing. Any thread; nothing here fails: what cannot be read is not there, or not known.
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
    int numa_node;  /* -1: not known, or the machine has one node only */
};

/*
 * This process's GPUs in the order of their PCI addresses (CUDA's, with CUDA_DEVICE_ORDER=PCI_BUS_ID or where all cards
 * are alike): what the driver lists under /proc, of which a container keeps those whose device nodes it has; where the
 * driver lists nothing, the nodes alone, about which nothing more is known. `root` is put in front of all paths ("" in
 * production). Returns how many were written to out, at most cap.
 */
size_t cdi_gpus_read(const char *root, struct cdi_gpu *out, size_t cap);

/*
 * Which of them does this value of CUDA_VISIBLE_DEVICES (NULL: not set) show? shown[k] is the index in all[] of CUDA's
 * device k, or -1 where it cannot be told (a MIG instance, a UUID where none is known). Returns their number, at most
 * cap.
 *
 * As CUDA reads it: entries behind commas, each a number, the beginning of one card's UUID, or a MIG instance; the
 * first entry that is no device, or is of another kind than the first one, ends the list; a device named twice empties
 * it; of MIG instances only the first is shown. Pure.
 */
size_t cdi_gpus_visible(const char *variable, const struct cdi_gpu *all, size_t n_all, int *shown, size_t cap);

/* "0000:3b:00.0" from any spelling of a PCI address (CUDA's has capitals, nvidia-smi's a longer domain). Pure. */
bool cdi_gpu_pci(char out[16], const char *address);

/* The NUMA node of the device at this PCI address (as cdi_gpu_pci writes it), -1 if not known. root: as above. */
int cdi_gpu_numa_node(const char *root, const char *pci);

#endif
