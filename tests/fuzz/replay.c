/* SPDX-License-Identifier: Apache-2.0 */
/* replay FOLDER: runs a fuzz target once over each file of its corpus, for builds without libFuzzer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input has exactly its file's bytes, so that a sanitizer sees a read after its end. */
static void replay(const char *folder, const char *name)
{
    char path[4096];
    uint8_t *data;
    FILE *f;
    long size;

    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path || (f = fopen(path, "rb")) == NULL)
        abort();
    if (fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 0 || (data = malloc((size_t)size + (size == 0))) == NULL)
        abort();
    rewind(f);
    if (fread(data, 1, (size_t)size, f) != (size_t)size || fclose(f) != 0)
        abort();
    (void)printf("%s\n", name); /* the last one is the one that failed */
    (void)fflush(stdout);
    (void)LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
}

int main(int argc, char **argv)
{
    struct dirent **names;
    int n = argc == 2 ? scandir(argv[1], &names, NULL, alphasort) : -1, n_files = 0;

    for (int i = 0; i < n; i++) {
        if (names[i]->d_type == DT_REG) {
            replay(argv[1], names[i]->d_name);
            n_files++;
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return n_files > 0 ? 0 : 1;
}
