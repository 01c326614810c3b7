/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/program.h"

#include "common/cleanup.h"

#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADERS_MAX 64  /* program headers; a linker makes about 13 */
#define DYNAMIC_MAX 512 /* entries of the dynamic section */
#define NEEDED_MAX 128

struct file {
    int fd;
    unsigned n_headers;
    ElfW(Phdr) headers[HEADERS_MAX];
};

static bool read_at(int fd, void *to, size_t n, uint64_t offset)
{
    return offset <= INT64_MAX && pread(fd, to, n, (off_t)offset) == (ssize_t)n;
}

/* Reads a NUL-terminated name of at most PROGRAM_NAME_MAX - 1 bytes. False: there is none; then `to` is "". */
static bool read_name(int fd, char to[PROGRAM_NAME_MAX], uint64_t offset)
{
    ssize_t n = offset > INT64_MAX ? -1 : pread(fd, to, PROGRAM_NAME_MAX, (off_t)offset);

    if (n > 0 && memchr(to, '\0', (size_t)n) != NULL)
        return true;
    to[0] = '\0';
    return false;
}

static bool read_headers(struct file *f)
{
    ElfW(Ehdr) h;

    if (!read_at(f->fd, &h, sizeof h, 0) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
        return false;
    if (h.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) ||
        h.e_ident[EI_DATA] != (__BYTE_ORDER == __LITTLE_ENDIAN ? ELFDATA2LSB : ELFDATA2MSB))
        return false;
    if (h.e_phentsize != sizeof f->headers[0] || h.e_phnum > HEADERS_MAX)
        return false;
    f->n_headers = h.e_phnum;
    return read_at(f->fd, f->headers, f->n_headers * sizeof f->headers[0], h.e_phoff);
}

/* Returns the offset in the file of an address of the program; UINT64_MAX: none. */
static uint64_t offset_of(const struct file *f, uint64_t address)
{
    for (unsigned i = 0; i < f->n_headers; i++) {
        const ElfW(Phdr) *p = &f->headers[i];

        if (p->p_type == PT_LOAD && address >= p->p_vaddr && address - p->p_vaddr < p->p_filesz &&
            address - p->p_vaddr <= UINT64_MAX - 1 - p->p_offset)
            return p->p_offset + (address - p->p_vaddr);
    }
    return UINT64_MAX;
}

/* Open MPI's, MPICH's and Intel's, for C and Fortran: libmpi.so.40, libmpich.so.12, libmpi_mpifh.so.40, libmpifort.so.
 */
static bool is_mpi(const char *name)
{
    static const char *const begins[] = {"libmpi.so",     "libmpi_",      "libmpich",
                                         "libmpifort.so", "libmpicxx.so", "libpmpi.so"};

    for (unsigned i = 0; i < sizeof begins / sizeof begins[0]; i++)
        if (strncmp(name, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

static void take_needed(struct program_facts *out, const char *name)
{
    if (out->mpi[0] == '\0' && is_mpi(name))
        memcpy(out->mpi, name, strlen(name) + 1);
    if (strncmp(name, "libcddp.so", strlen("libcddp.so")) == 0 || strcmp(name, "cddp_mpi.so") == 0)
        out->cddp = true;
}

void program_take_map(struct program_facts *facts, const char *line)
{
    const char *slash = strrchr(line, '/');
    size_t n = slash != NULL ? strcspn(slash + 1, " \n") : 0;
    char name[PROGRAM_NAME_MAX];

    if (n == 0 || n >= sizeof name)
        return;
    memcpy(name, slash + 1, n);
    name[n] = '\0';
    take_needed(facts, name);
}

static void read_dynamic(const struct file *f, const ElfW(Phdr) * p, struct program_facts *out)
{
    uint64_t needed[NEEDED_MAX], strings = UINT64_MAX, size = 0;
    unsigned n = 0;
    char name[PROGRAM_NAME_MAX];
    ElfW(Dyn) d;

    for (unsigned i = 0; i < DYNAMIC_MAX && i < p->p_filesz / sizeof d; i++) {
        if (p->p_offset > INT64_MAX || !read_at(f->fd, &d, sizeof d, p->p_offset + i * sizeof d) || d.d_tag == DT_NULL)
            break;
        if (d.d_tag == DT_NEEDED && n < NEEDED_MAX)
            needed[n++] = d.d_un.d_val;
        else if (d.d_tag == DT_STRTAB)
            strings = offset_of(f, d.d_un.d_ptr);
        else if (d.d_tag == DT_STRSZ)
            size = d.d_un.d_val;
    }
    for (unsigned i = 0; i < n && strings != UINT64_MAX; i++)
        if (needed[i] < size && needed[i] <= UINT64_MAX - 1 - strings && read_name(f->fd, name, strings + needed[i]))
            take_needed(out, name);
}

/* "#! /usr/bin/env python3\r": the first word. */
static bool read_script(int fd, struct program_facts *out)
{
    char line[PROGRAM_NAME_MAX];
    ssize_t n = pread(fd, line, sizeof line - 1, 0);
    size_t from, len, end;

    if (n < 2 || line[0] != '#' || line[1] != '!')
        return false;
    line[n] = '\0';
    end = strcspn(line, "\n");
    from = 2 + strspn(line + 2, " \t");
    len = strcspn(line + from, " \t\r\n");
    memcpy(out->interpreter, line + from, len);
    out->interpreter[len] = '\0';
    out->script = true;
    out->carriage_return = line[end] == '\n' && line[end - 1] == '\r';
    return true;
}

bool program_read(const char *path, struct program_facts *out)
{
    CDI_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct file f = {.fd = fd};
    struct stat sb;

    *out = (struct program_facts){.script = false};
    if (fd < 0 || fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode))
        return false;
    if (read_script(fd, out))
        return true;
    if (!read_headers(&f))
        return false;
    for (unsigned i = 0; i < f.n_headers; i++) {
        if (f.headers[i].p_type == PT_INTERP)
            (void)read_name(fd, out->interpreter, f.headers[i].p_offset);
        else if (f.headers[i].p_type == PT_DYNAMIC)
            read_dynamic(&f, &f.headers[i], out);
    }
    return true;
}
