/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/python_symbols.h"

#include "common/cleanup.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAPS_LINE (PATH_MAX + 256)
#define SECTIONS_MAX 4096
#define SEGMENTS_MAX 256
#define SYMBOLS_MAX (1u << 20)
#define SYMBOLS_READ 512 /* at a time */

/* ------------------------------------------------------------------------------------------------------ maps ---- */

static const char *image_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

uint32_t python_image_minor(const char *path)
{
    const char *name = image_base_name(path), *at = strstr(name, "python3.");
    unsigned long minor;
    char *end;

    if (at == NULL)
        return 0;
    at += strlen("python3.");
    minor = strtoul(at, &end, 10);
    return end > at && minor < 256 ? (uint32_t)minor : 0;
}

/* How likely it is that this file has CPython; 0: not. Modules such as _json.cpython-311.so do not begin like this. */
static int image_rank(const char *path, const char *exe)
{
    const char *name = image_base_name(path);

    if (strncmp(name, "libpython3", strlen("libpython3")) == 0)
        return 3;
    if (strncmp(name, "python", strlen("python")) == 0)
        return strcmp(path, exe) == 0 ? 2 : 1;
    return 0;
}

static bool image_read_line(FILE *f, char line[MAPS_LINE])
{
    size_t n;

    if (fgets(line, MAPS_LINE, f) == NULL)
        return false;
    n = strlen(line);
    if (n > 0 && line[n - 1] == '\n')
        line[n - 1] = '\0';
    return true;
}

bool python_image_find(pid_t pid, struct python_image *out)
{
    char line[MAPS_LINE], path[64], exe[PATH_MAX];
    int best = 0;
    ssize_t n;
    FILE *f;

    (void)snprintf(path, sizeof path, "/proc/%ld/exe", (long)pid);
    n = readlink(path, exe, sizeof exe - 1);
    exe[n < 0 ? 0 : n] = '\0';
    (void)snprintf(path, sizeof path, "/proc/%ld/maps", (long)pid);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    while (image_read_line(f, line)) {
        char *name = strchr(line, '/');
        uint64_t start, offset;
        int rank = name == NULL ? 0 : image_rank(name, exe);

        if (rank <= best || sscanf(line, "%" SCNx64 "-%*x %*s %" SCNx64, &start, &offset) != 2)
            continue;
        best = rank;
        *out = (struct python_image){.start = start, .offset = offset, .library = rank == 3};
        (void)snprintf(out->path, sizeof out->path, "%.*s", PATH_MAX - 1, name);
    }
    (void)fclose(f);
    return best > 0;
}

/* ------------------------------------------------------------------------------------------------------- ELF ---- */

struct elf {
    int fd;
    uint64_t size;
    uint64_t bias; /* of addresses in the process */
    Elf64_Ehdr head;
    Elf64_Shdr *sections;
};

static bool elf_read(const struct elf *e, uint64_t at, void *to, size_t n)
{
    return at <= e->size && n <= e->size - at && pread(e->fd, to, n, (off_t)at) == (ssize_t)n;
}

/* Finds the difference between addresses in the process and in the file, by the segment that is mapped first. */
static bool elf_find_bias(struct elf *e, const struct python_image *image)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (e->head.e_phentsize != sizeof(Elf64_Phdr) || e->head.e_phnum > SEGMENTS_MAX)
        return false;
    for (uint32_t i = 0; i < e->head.e_phnum; i++) {
        Elf64_Phdr p;

        if (!elf_read(e, e->head.e_phoff + i * sizeof p, &p, sizeof p))
            return false;
        if (p.p_type == PT_LOAD && (p.p_offset & ~(page - 1)) == image->offset) {
            e->bias = image->start - (p.p_vaddr & ~(page - 1));
            return true;
        }
    }
    return false;
}

static bool elf_open(struct elf *e, int fd)
{
    struct stat st;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    e->fd = fd;
    e->size = (uint64_t)st.st_size;
    if (!elf_read(e, 0, &e->head, sizeof e->head) || memcmp(e->head.e_ident, ELFMAG, SELFMAG) != 0 ||
        e->head.e_ident[EI_CLASS] != ELFCLASS64 || e->head.e_ident[EI_DATA] != ELFDATA2LSB ||
        e->head.e_shentsize != sizeof(Elf64_Shdr) || e->head.e_shnum == 0 || e->head.e_shnum > SECTIONS_MAX)
        return false;
    e->sections = calloc(e->head.e_shnum, sizeof *e->sections);
    return e->sections != NULL && elf_read(e, e->head.e_shoff, e->sections, e->head.e_shnum * sizeof *e->sections);
}

/* Is there this text, with its final NUL, at a place of a table of strings? */
static bool elf_is_text(const struct elf *e, const Elf64_Shdr *strings, uint64_t at, const char *text)
{
    char bytes[32];
    size_t n = strlen(text) + 1;

    return n <= sizeof bytes && at <= strings->sh_size && n <= strings->sh_size - at && strings->sh_offset <= e->size &&
           elf_read(e, strings->sh_offset + at, bytes, n) && memcmp(bytes, text, n) == 0;
}

/* _PyRuntime and Py_Version have a size that no function has by chance; it saves reading most names. */
static void elf_take_symbol(const struct elf *e, const Elf64_Shdr *strings, const Elf64_Sym *s,
                            struct python_symbols *out)
{
    if (ELF64_ST_TYPE(s->st_info) != STT_OBJECT || s->st_shndx == SHN_UNDEF || s->st_value == 0)
        return;
    if (out->version == 0 && s->st_size == sizeof(uint64_t) && elf_is_text(e, strings, s->st_name, "Py_Version"))
        out->version = s->st_value + e->bias;
    else if (out->runtime == 0 && s->st_size >= 256 && elf_is_text(e, strings, s->st_name, "_PyRuntime"))
        out->runtime = s->st_value + e->bias;
}

static void elf_take_table(const struct elf *e, const Elf64_Shdr *table, struct python_symbols *out)
{
    Elf64_Sym some[SYMBOLS_READ];
    uint64_t n = table->sh_size / sizeof some[0];
    const Elf64_Shdr *strings;

    if (table->sh_link >= e->head.e_shnum || table->sh_offset > e->size)
        return;
    strings = &e->sections[table->sh_link];
    if (n > SYMBOLS_MAX)
        n = SYMBOLS_MAX;
    for (uint64_t i = 0; i < n && (out->runtime == 0 || out->version == 0); i += SYMBOLS_READ) {
        size_t count = n - i < SYMBOLS_READ ? (size_t)(n - i) : SYMBOLS_READ;

        if (!elf_read(e, table->sh_offset + i * sizeof some[0], some, count * sizeof some[0]))
            return;
        for (size_t k = 0; k < count; k++)
            elf_take_symbol(e, strings, &some[k], out);
    }
}

/* A stripped program without exported symbols has the section .PyRuntime from 3.13 on. */
static void elf_take_section(const struct elf *e, struct python_symbols *out)
{
    if (e->head.e_shstrndx >= e->head.e_shnum)
        return;
    for (uint32_t i = 0; i < e->head.e_shnum && out->runtime == 0; i++)
        if (elf_is_text(e, &e->sections[e->head.e_shstrndx], e->sections[i].sh_name, ".PyRuntime"))
            out->runtime = e->sections[i].sh_addr + e->bias;
}

cddp_status python_symbols_in(int fd, const struct python_image *image, struct python_symbols *out,
                              struct cdi_error *err)
{
    struct elf e = {.fd = fd};

    *out = (struct python_symbols){0};
    if (!elf_open(&e, fd) || !elf_find_bias(&e, image)) {
        free(e.sections);
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "'%.300s' is not a 64-bit ELF file that makes sense", image->path);
    }
    for (uint32_t type = SHT_DYNSYM; type != 0; type = type == SHT_DYNSYM ? SHT_SYMTAB : 0)
        for (uint32_t i = 0; i < e.head.e_shnum; i++)
            if (e.sections[i].sh_type == type)
                elf_take_table(&e, &e.sections[i], out);
    elf_take_section(&e, out);
    free(e.sections);
    return out->runtime != 0 ? CDDP_OK
                             : cdi_fail(err, CDDP_E_NOT_FOUND, "'%.300s' has no symbol _PyRuntime", image->path);
}

cddp_status python_symbols_find(pid_t pid, const struct python_image *image, struct python_symbols *out,
                                struct cdi_error *err)
{
    char path[PATH_MAX + 64];
    CDI_AUTOCLOSE int fd = -1;

    /* Its own view of the files: it may live in a container. */
    (void)snprintf(path, sizeof path, "/proc/%ld/root%s", (long)pid, image->path);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && !image->library) {
        (void)snprintf(path, sizeof path, "/proc/%ld/exe", (long)pid);
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0)
        return cdi_fail(err, errno == EACCES || errno == EPERM ? CDDP_E_DENIED : CDDP_E_IO, "cannot read '%.300s': %s",
                        image->path, strerror(errno));
    return python_symbols_in(fd, image, out, err);
}
