/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "watch/views.h"

#include <string.h>

CDI_SUITE(http);

static cddp_status parse(const char *text, struct http_request *req)
{
    struct cdi_buf in;
    struct cdi_error err;
    cddp_status st;

    cdi_buf_init(&in, 0);
    (void)cdi_buf_append(&in, text, strlen(text));
    st = http_parse(&in, req, &err);
    cdi_buf_release(&in);
    return st;
}

Test(http, parses_request_after_its_blank_line)
{
    static const char text[] = "GET /healthz?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";
    struct http_request req;
    char part[sizeof text];

    for (size_t n = 0; n < sizeof text; n++) {
        memcpy(part, text, n);
        part[n] = '\0';
        cr_assert_eq(parse(part, &req), n < sizeof text - 1 ? CDDP_IN_PROGRESS : CDDP_OK, "%zu bytes", n);
    }
    cr_assert(req.get);
    cr_assert_str_eq(req.path, "/healthz");
    cr_assert(!req.head);
    cr_assert_eq(parse("HEAD /metrics HTTP/1.1\r\n\r\n", &req), CDDP_OK);
    cr_assert(req.get && req.head);
    cr_assert_str_eq(req.path, "/metrics");
    cr_assert_eq(parse("POST / HTTP/1.0\n\n", &req), CDDP_OK);
    cr_assert(!req.get);
    cr_assert_str_eq(req.path, "/");
}

Test(http, accepts_target_in_absolute_form)
{
    static const char *const cases[][2] = {{"GET http://head:29400/status HTTP/1.1\r\n\r\n", "/status"},
                                           {"GET HTTP://[::1]:1/status?x=/y HTTP/1.1\r\n\r\n", "/status"},
                                           {"GET http://head HTTP/1.1\r\n\r\n", "/"},
                                           {"GET http://head?q HTTP/1.0\n\n", "/"}};
    static const char *const bad[] = {"GET http:// HTTP/1.1\r\n\r\n", "GET http:///a HTTP/1.1\r\n\r\n",
                                      "GET https://a/b HTTP/1.1\r\n\r\n", "GET http://a b HTTP/1.1\r\n\r\n",
                                      "GET http://a\r\n\r\n"};
    struct http_request req;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(parse(cases[i][0], &req), CDDP_OK, "%s", cases[i][0]);
        cr_assert_str_eq(req.path, cases[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(parse(bad[i], &req), CDDP_E_PROTOCOL, "%s", bad[i]);
}

Test(http, rejects_invalid_requests)
{
    static const char *const bad[] = {"\r\n\r\n",
                                      "GET\r\n\r\n",
                                      "GET healthz HTTP/1.1\r\n\r\n",
                                      "GET / HTTP/2.0\r\n\r\n",
                                      "GET / HTTP/1.1 x\n\n",
                                      "GET  / HTTP/1.1\r\n\r\n",
                                      "GET /a\x01 HTTP/1.1\r\n\r\n",
                                      "GET /\r\n\r\n",
                                      "GET / HTTP/1.12\r\n\r\n"};
    struct http_request req;
    char *big = malloc(9001);

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(parse(bad[i], &req), CDDP_E_PROTOCOL, "case %zu", i);
    memset(big, 'a', 9000);
    big[9000] = '\0';
    memcpy(big, "GET /", 5);
    cr_assert_eq(parse(big, &req), CDDP_E_LIMIT);
    memcpy(big + 300, " HTTP/1.1\r\n\r\n", 14);
    cr_assert_eq(parse(big, &req), CDDP_E_PROTOCOL, "a path of more than 255 bytes");
    free(big);
}

Test(http, responses_have_type_and_length)
{
    static const struct {
        struct http_request req;
        const char *status, *body;
    } cases[] = {{{true, "/healthz"}, "HTTP/1.1 200 OK\r\n", "ok\n"},
                 {{true, "/nothing"}, "HTTP/1.1 404 Not Found\r\n", "no such page\n"},
                 {{true, "/status"},
                  "HTTP/1.1 403 Forbidden\r\n",
                  "this page is only for nodes of the job (see cddp-rendezvous --http)\n"},
                 {{false, "/healthz"}, "HTTP/1.1 405 Method Not Allowed\r\n", "only GET and HEAD\n"}};
    struct cdi_buf out;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512] = {0}, length[64];

        cdi_buf_init(&out, 0);
        cr_assert_eq(http_answer(&cases[i].req, http_page_of(watch_views.pages, &cases[i].req), NULL, &out), CDDP_OK);
        memcpy(text, cdi_buf_data(&out), out.len);
        (void)snprintf(length, sizeof length, "Content-Length: %zu\r\n", strlen(cases[i].body));
        cr_assert_eq(strncmp(text, cases[i].status, strlen(cases[i].status)), 0);
        cr_assert_not_null(strstr(text, length));
        cr_assert_not_null(strstr(text, "Connection: close\r\n"));
        cr_assert_str_eq(strstr(text, "\r\n\r\n") + 4, cases[i].body);
        cdi_buf_release(&out);
        if (cases[i].req.get) { /* HEAD: the same without the body */
            struct http_request head = cases[i].req;
            size_t size = strlen(text) - strlen(cases[i].body);

            head.head = true;
            cr_assert_eq(http_answer(&head, http_page_of(watch_views.pages, &head), NULL, &out), CDDP_OK);
            cr_assert(out.len == size && memcmp(cdi_buf_data(&out), text, size) == 0);
            cdi_buf_release(&out);
        }
    }
    cr_assert_eq(http_answer(NULL, NULL, NULL, &out), CDDP_OK);
    cr_assert_eq(memcmp(cdi_buf_data(&out), "HTTP/1.1 400 ", 13), 0);
    cdi_buf_release(&out);
}
