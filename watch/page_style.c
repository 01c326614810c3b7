/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/page_style.h"

/* clang-format off */
const char *const page_style[] = {
    "<style>\n"
    ":root{--bg:#f6f7f9;--card:#fff;--ink:#1a1d21;--soft:#59636e;--line:#d8dee4;--good:#116329;--warn:#7d4e00;--bad:#b3141f;"
    "--goodbg:#dcf5e3;--warnbg:#fff1cc;--badbg:#ffe2e0;--a:#0a58ca;--b:#9ec5fe;--c:#c2410c}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--card:#161b22;--ink:#e6edf3;--soft:#9aa5b1;--line:#30363d;"
    "--good:#5ad672;--warn:#e8b339;--bad:#ff7b72;--goodbg:#10301b;--warnbg:#362a0b;--badbg:#3f1618;--a:#58a6ff;--b:#1f4f8f;"
    "--c:#ff9b5e}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.45 system-ui,sans-serif}\n"
    "main{max-width:72rem;margin:0 auto;padding:1rem}section{margin-bottom:2.5rem}a{color:var(--a)}\n",
    ".state{display:flex;gap:1rem;align-items:center;padding:1rem 1.25rem;border-radius:.75rem;border-left:.5rem solid}\n"
    ".state>div{min-width:0}.state svg{flex:none;width:3.25rem;height:3.25rem;fill:none;stroke:currentColor;stroke-width:2;"
    "stroke-linecap:round}.state h2{margin:0;font-size:1.1rem;font-weight:500;overflow-wrap:anywhere}\n"
    ".word{font-size:2rem;font-weight:700;line-height:1.1;margin-right:.35rem}.job,.state p{color:var(--ink)}"
    ".state p{margin:.25rem 0 0;overflow-wrap:anywhere}\n"
    ".good{color:var(--good);background:var(--goodbg)}.warn{color:var(--warn);background:var(--warnbg)}"
    ".bad{color:var(--bad);background:var(--badbg)}\n",
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8rem,1fr));gap:.75rem;margin:.75rem 0}\n"
    ".tile,figure{background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:.6rem .9rem}\n"
    "dt,figcaption,th{color:var(--soft);font-size:.85rem;font-weight:500}dd{margin:0;font-size:1.35rem;font-weight:600}"
    "dd small{display:block;font-size:.85rem;font-weight:400;color:var(--soft)}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(18rem,100%),1fr));gap:.75rem}"
    ".charts:empty{display:none}figure{margin:0}figure svg{display:block;width:100%;height:auto;margin-top:.4rem}\n"
    "svg text{font-size:11px;fill:var(--soft)}svg text.right{text-anchor:end}.axis{stroke:var(--line);fill:none}\n"
    ".line{fill:none;stroke:var(--a);stroke-width:2;stroke-linejoin:round}.area{fill:var(--b);opacity:.45}"
    "path.hidden{fill:var(--b)}path.exposed{fill:var(--c)}.bar{fill:var(--a)}.bar.slow,.mark{fill:var(--c)}\n",
    ".key{white-space:nowrap}.key:before{content:\"\";display:inline-block;width:.7em;height:.7em;margin-right:.3em;"
    "border-radius:2px}.key.hidden:before{background:var(--b)}.key.exposed:before,.key.slow:before{background:var(--c)}\n"
    "h3,summary{font-size:1rem;font-weight:600;margin:1.25rem 0 .4rem}summary{cursor:pointer}\n"
    "table{border-collapse:collapse;width:100%;background:var(--card);border:1px solid var(--line);border-radius:.75rem;"
    "overflow:hidden}th,td{text-align:left;padding:.4rem .9rem;border-top:1px solid var(--line);overflow-wrap:anywhere;"
    "vertical-align:top}thead th{border-top:0}\n"
    "@media(min-width:641px){.where td:nth-child(3),.where td:nth-child(5){white-space:nowrap}.where td{min-width:6.5rem}"
    ".where td:nth-child(2){width:45%}}\n"
    ".more,footer{color:var(--soft);font-size:.9rem}#lost{margin:0;padding:.6rem 1rem;background:var(--bad);color:var(--bg);"
    "text-align:center}#lost[hidden]{display:none}\n"
    "@media(max-width:640px){main{padding:.6rem}.state{padding:.8rem;gap:.7rem}.state svg{width:2.25rem;height:2.25rem}"
    ".tiles{grid-template-columns:1fr 1fr}thead{display:none}"
    "tr{display:block;padding:.4rem 0;border-top:1px solid var(--line)}tr:first-child{border-top:0}"
    "td{display:flex;gap:.75rem;border:0;padding:.1rem .9rem}td:before{content:attr(data-of);flex:none;width:4.2rem;"
    "color:var(--soft)}}\n"
    "</style>\n",
};
const size_t page_style_parts = sizeof page_style / sizeof page_style[0];

/*
 * Gets this page again two seconds after the last answer, unless nobody sees it: then the agents are not asked either.
 * What the reader has opened stays open.
 */
const char page_script[] =
    "<script>\n"
    "(() => {\n"
    "  const get = (d, q) => d.querySelector(q), lost = get(document, '#lost');\n"
    "  const opened = () => [...document.querySelectorAll('details')];\n"
    "  async function refresh() {\n"
    "    try {\n"
    "      if (!document.hidden) {\n"
    "        const answer = await fetch('/', {cache: 'no-store', signal: AbortSignal.timeout(5000)});\n"
    "        if (!answer.ok) throw new Error(answer.status);\n"
    "        const page = new DOMParser().parseFromString(await answer.text(), 'text/html');\n"
    "        for (const d of opened()) {\n"
    "          const other = [...page.querySelectorAll('details')].find(o => o.dataset.key === d.dataset.key);\n"
    "          if (other) other.open = d.open;\n"
    "        }\n"
    "        get(document, 'main').replaceWith(get(page, 'main'));\n"
    "        document.title = page.title;\n"
    "        lost.hidden = true;\n"
    "      }\n"
    "    } catch (why) { lost.hidden = false; }\n"
    "    setTimeout(refresh, 2000);\n"
    "  }\n"
    "  setTimeout(refresh, 2000);\n"
    "})();\n"
    "</script>\n";
/* clang-format on */
