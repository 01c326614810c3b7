/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges for NVIDIA's profilers (NVTX) with CDDP_NVTX=1, if libnvToolsExt.so.1 of the CUDA toolkit is there. It is
 * opened by name. Without it, or without the variable, every function returns at once. Any thread.
 */
#ifndef CDI_NVTX_H
#define CDI_NVTX_H

#include <stdint.h>

#define CDI_NVTX_ENV "CDDP_NVTX"                 /* 1: on */
#define CDI_NVTX_LIBRARY_ENV "CDDP_NVTX_LIBRARY" /* a file to open in place of libnvToolsExt.so.1 */

/* Begins a range of this thread, named such as "cddp bucket 3"; ranges of a thread nest. */
void cdi_nvtx_push(const char *what, uint64_t number);
void cdi_nvtx_pop(void);
/* Begins a range that any thread may end. Returns its id for cdi_nvtx_end(); 0: there is none. */
uint64_t cdi_nvtx_begin(const char *what, uint64_t number);
void cdi_nvtx_end(uint64_t id); /* nothing for 0 */

#endif
