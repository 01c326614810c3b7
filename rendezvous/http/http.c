/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/http/http.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Returns the length of the head with its blank line, or 0 if it is not complete. A single LF also ends a line. */
static size_t head_size(const uint8_t *p, size_t len)
{
    for (size_t i = 0; i + 1 < len; i++)
        if (p[i] == '\n' && (p[i + 1] == '\n' || (i + 2 < len && p[i + 1] == '\r' && p[i + 2] == '\n')))
            return i + (p[i + 1] == '\n' ? 2 : 3);
    return 0;
}

static size_t span(const uint8_t *p, size_t len, char until)
{
    size_t n = 0;

    while (n < len && p[n] != (uint8_t)until && p[n] > ' ' && p[n] < 0x7f)
        n++;
    return n;
}

/* Returns the length of "http://AUTHORITY", the start of a target in absolute form; 0: another form. */
static size_t authority_size(const uint8_t *p, size_t len)
{
    static const char scheme[] = "http://";
    size_t n = sizeof scheme - 1;

    if (len < n || strncasecmp((const char *)p, scheme, n) != 0)
        return 0;
    while (n < len && p[n] > ' ' && p[n] < 0x7f && p[n] != '/' && p[n] != '?')
        n++;
    return n == sizeof scheme - 1 ? 0 : n;
}

/* METHOD SP target SP HTTP/1.x CR LF */
static bool parse_line(const uint8_t *p, size_t len, struct http_request *req)
{
    size_t method = span(p, len, ' '), at = method + 1, authority, path, rest;

    if (method == 0 || at >= len || p[method] != ' ')
        return false;
    authority = authority_size(p + at, len - at);
    at += authority;
    if (authority == 0 && p[at] != '/')
        return false;
    path = span(p + at, len - at, '?');
    if (path >= sizeof req->path)
        return false;
    rest = at + path;
    rest += span(p + rest, len - rest, ' ');
    if (rest + 9 > len || memcmp(p + rest, " HTTP/1.", 8) != 0 || (p[rest + 8] != '0' && p[rest + 8] != '1'))
        return false;
    rest += 9;
    if (rest < len && p[rest] == '\r')
        rest++;
    if (rest != len)
        return false;
    req->head = method == 4 && memcmp(p, "HEAD", 4) == 0;
    req->get = req->head || (method == 3 && memcmp(p, "GET", 3) == 0);
    memcpy(req->path, p + at, path);
    req->path[path] = '\0';
    if (path == 0)
        (void)snprintf(req->path, sizeof req->path, "/");
    return true;
}

cddp_status http_parse(const struct cdi_buf *in, struct http_request *req, struct cdi_error *err)
{
    const uint8_t *p = cdi_buf_data(in), *eol;
    size_t len = in->len < HTTP_HEAD_MAX ? in->len : HTTP_HEAD_MAX;
    size_t head = head_size(p, len);

    if (head == 0 && in->len >= HTTP_HEAD_MAX)
        return cdi_fail(err, CDDP_E_LIMIT, "HTTP head longer than %d bytes", HTTP_HEAD_MAX);
    if (head == 0)
        return CDDP_IN_PROGRESS;
    eol = memchr(p, '\n', head);
    if (eol == NULL || !parse_line(p, (size_t)(eol - p), req))
        return cdi_fail(err, CDDP_E_PROTOCOL, "invalid HTTP request line");
    return CDDP_OK;
}

const struct http_page *http_page_of(const struct http_page *pages, const struct http_request *req)
{
    for (; req->get && pages->path != NULL; pages++)
        if (strcmp(req->path, pages->path) == 0)
            return pages;
    return NULL;
}

static cddp_status http_put_head(struct cdi_buf *out, const char *status, const char *type, const char *more,
                                 size_t len)
{
    return cdi_buf_printf(out,
                          "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                          "Cache-Control: no-store\r\nConnection: close\r\n%s\r\n",
                          status, type, len, more);
}

static cddp_status http_put(struct cdi_buf *out, const char *status, const char *more, const char *body, bool head)
{
    cddp_status st = http_put_head(out, status, "text/plain; charset=utf-8", more, strlen(body));

    return st == CDDP_OK && !head ? cdi_buf_append(out, body, strlen(body)) : st;
}

static cddp_status http_put_page(const struct http_page *page, const struct page_data *data, struct cdi_buf *out,
                                 bool head)
{
    struct cdi_buf body;
    cddp_status st;

    cdi_buf_init(&body, out->limit);
    st = page->write(data, &body);
    if (st == CDDP_OK)
        st = http_put_head(out, "200 OK", page->type, "", body.len);
    if (st == CDDP_OK && !head)
        st = cdi_buf_append(out, cdi_buf_data(&body), body.len);
    cdi_buf_release(&body);
    return st;
}

cddp_status http_answer(const struct http_request *req, const struct http_page *page, const struct page_data *data,
                        struct cdi_buf *out)
{
    if (req == NULL)
        return http_put(out, "400 Bad Request", "", "bad request\n", false);
    if (!req->get)
        return http_put(out, "405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET and HEAD\n", false);
    if (strcmp(req->path, "/healthz") == 0)
        return http_put(out, "200 OK", "", "ok\n", req->head);
    if (page == NULL)
        return http_put(out, "404 Not Found", "", "no such page\n", req->head);
    if (data == NULL)
        return http_put(out, "403 Forbidden", "",
                        "this page is only for nodes of the job (see cddp-rendezvous --http)\n", req->head);
    return http_put_page(page, data, out, req->head);
}
