/* JSON that is written as it goes. See json_out.h. */
#include "fabric/json_out.h"

#include <math.h>
#include <string.h>

static void begin(im_json_out *w, const char *key)
{
    if (w->comma)
        im_str_append(w->out, ", ");
    w->comma = true;
    if (!key)
        return;
    im_str_json_string(w->out, key, strlen(key));
    im_str_append(w->out, ": ");
}

void im_json_out_open(im_json_out *w, const char *key, char kind)
{
    begin(w, key);
    im_str_append_n(w->out, &kind, 1);
    w->comma = false;
}

void im_json_out_close(im_json_out *w, char kind)
{
    im_str_append_n(w->out, &kind, 1);
    w->comma = true;
}

void im_json_out_text(im_json_out *w, const char *key, const char *text)
{
    if (!text)
        return;
    begin(w, key);
    im_str_json_string(w->out, text, strlen(text));
}

void im_json_out_int(im_json_out *w, const char *key, int64_t v)
{
    begin(w, key);
    im_str_printf(w->out, "%lld", (long long)v);
}

void im_json_out_uint(im_json_out *w, const char *key, uint64_t v)
{
    begin(w, key);
    im_str_printf(w->out, "%llu", (unsigned long long)v);
}

void im_json_out_real(im_json_out *w, const char *key, double v)
{
    if (!isfinite(v))
        return;
    begin(w, key);
    im_str_printf(w->out, "%.15g", v);
}

void im_json_out_bool(im_json_out *w, const char *key, bool v)
{
    begin(w, key);
    im_str_append(w->out, v ? "true" : "false");
}

void im_json_out_reading(im_json_out *w, const char *key, const im_reading *r)
{
    if (r->is_number)
        im_json_out_int(w, key, r->value);
    else if (!r->why) /* with one: a text where a number should stand */
        im_json_out_text(w, key, r->text);
}
