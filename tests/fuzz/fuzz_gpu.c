/* SPDX-License-Identifier: Apache-2.0 */
/* Environments of workers: which GPU they have. */
#include "watch/node/gpu_load.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct cdi_gpu gpus[] = {{.uuid = "GPU-aa", .model = "X"},
                                          {.uuid = "GPU-ab", .model = "X"},
                                          {.uuid = "", .model = "X"},
                                          {.uuid = "GPU-c", .model = "Y"}};
    char *text = malloc(size + 1); /* exact, so that a read beyond it is found */

    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    for (size_t n = 0; n <= sizeof gpus / sizeof gpus[0]; n++) {
        int gpu = gpu_load_of(text, size, gpus, n);

        if (gpu < -1 || gpu >= (int)n)
            abort();
    }
    free(text);
    return 0;
}
