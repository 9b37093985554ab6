/* A report as JSON, and as a page of HTML without scripts or files beside it. */
#include "fabric/check.h"
#include "fabric/json_out.h"

#include <string.h>

static void json_result(im_json_out *w, const im_check_result *r)
{
    im_json_out_open(w, NULL, '{');
    im_json_out_text(w, "id", r->row->id);
    im_json_out_text(w, "verdict", im_verdict_names[r->verdict]);
    im_json_out_text(w, "title", r->row->title);
    im_json_out_text(w, "why", r->row->why);
    im_json_out_text(w, "note", r->verdict == IM_VERDICT_OK ? r->note : NULL);
    im_json_out_open(w, "items", '[');
    for (size_t i = 0; i < r->n; i++) {
        const im_check_item *x = &r->item[i];
        im_json_out_open(w, NULL, '{');
        im_json_out_text(w, "verdict", im_verdict_names[x->verdict]);
        im_json_out_text(w, "where", x->where);
        im_json_out_text(w, "path", x->path);
        im_json_out_text(w, "value", x->value);
        im_json_out_text(w, "says", x->says);
        im_json_out_text(w, "type", x->mend);
        im_json_out_close(w, '}');
    }
    im_json_out_close(w, ']');
    im_json_out_close(w, '}');
}

void im_check_json(const im_check_report *report, im_str *out)
{
    im_json_out w = {.out = out};
    im_json_out_open(&w, NULL, '{');
    im_json_out_text(&w, "verdict", im_verdict_names[im_check_worst(report)]);
    for (int v = 0; v < 4; v++)
        im_json_out_uint(&w, im_verdict_names[v], report->count[v]);
    im_json_out_open(&w, "parts", '[');
    for (size_t i = 0; i < report->n; i++) {
        im_json_out_open(&w, NULL, '{');
        im_json_out_text(&w, "name", report->part[i].name);
        im_json_out_text(&w, "source", report->part[i].source);
        im_json_out_open(&w, "checks", '[');
        for (size_t k = 0; k < report->part[i].n; k++)
            json_result(&w, &report->part[i].result[k]);
        im_json_out_close(&w, ']');
        im_json_out_close(&w, '}');
    }
    im_json_out_close(&w, ']');
    im_json_out_close(&w, '}');
    im_str_append(out, "\n");
}

/* ---- HTML -------------------------------------------------------------------------------------- */

static void escaped(im_str *out, const char *text)
{
    for (const char *p = text ? text : ""; *p; p++) {
        const char *as = *p == '<' ? "&lt;" : *p == '>' ? "&gt;" : *p == '&' ? "&amp;" : *p == '"' ? "&quot;" : NULL;
        if (as)
            im_str_append(out, as);
        else
            im_str_append_n(out, p, 1);
    }
}

static void element(im_str *out, const char *tag, const char *class, const char *text)
{
    if (!text)
        return;
    im_str_printf(out, "<%s class=\"%s\">", tag, class);
    escaped(out, text);
    im_str_printf(out, "</%s>\n", tag);
}

static void html_result(const im_check_result *r, im_str *out)
{
    im_str_printf(out, "<section class=\"%s\">\n<h3><span>%s</span> ", im_verdict_names[r->verdict], im_verdict_names[r->verdict]);
    escaped(out, r->row->title);
    im_str_append(out, " <small>");
    escaped(out, r->row->id);
    im_str_append(out, "</small></h3>\n");
    element(out, "p", "why", r->row->why);
    if (r->verdict == IM_VERDICT_OK)
        element(out, "p", "note", r->note);
    for (size_t i = 0; i < r->n; i++) {
        const im_check_item *x = &r->item[i];
        im_str_append(out, "<div class=\"item\">\n<p>");
        if (x->where) {
            im_str_append(out, "<b>");
            escaped(out, x->where);
            im_str_append(out, "</b>: ");
        }
        escaped(out, x->says);
        im_str_append(out, "</p>\n");
        if (x->path || x->value) {
            im_str_append(out, "<p class=\"seen\">seen: ");
            escaped(out, x->path);
            if (x->path && x->value)
                im_str_append(out, " = ");
            escaped(out, x->value);
            im_str_append(out, "</p>\n");
        }
        element(out, "pre", "type", x->mend);
        im_str_append(out, "</div>\n");
    }
    im_str_append(out, "</section>\n");
}

void im_check_html(const im_check_report *report, im_str *out)
{
    im_str_append(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>imece fabric check</title>\n<style>\n"
                       "body{font:15px/1.45 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\n"
                       "section{border-left:5px solid #999;padding:.1em 1em;margin:1em 0;background:#fafafa}\n"
                       "section.fail{border-color:#b00}section.warn{border-color:#c80}section.ok{border-color:#484}\n"
                       "h3 span{text-transform:uppercase}small,.seen,.note{color:#666}.seen{font-family:monospace;overflow-wrap:anywhere}\n"
                       "pre{background:#222;color:#eee;padding:.6em;overflow-x:auto}\n</style></head><body>\n<h1>imece fabric check</h1>\n");
    im_str_printf(out, "<p>%zu fail, %zu warn, %zu not known, %zu ok. Each finding says what was seen, why it matters, and what to type.</p>\n",
                  report->count[IM_VERDICT_FAIL], report->count[IM_VERDICT_WARN], report->count[IM_VERDICT_UNKNOWN], report->count[IM_VERDICT_OK]);
    for (size_t i = 0; i < report->n; i++) {
        const im_check_part *part = &report->part[i];
        im_str_append(out, "<h2>");
        escaped(out, part->name);
        im_str_append(out, "</h2>\n");
        for (int v = IM_VERDICT_FAIL; v >= IM_VERDICT_OK; v--)
            for (size_t k = 0; k < part->n; k++)
                if ((int)part->result[k].verdict == v)
                    html_result(&part->result[k], out);
    }
    im_str_append(out, "</body></html>\n");
}
