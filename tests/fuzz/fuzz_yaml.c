/* Any bytes as a YAML file of options: refused with a message, or values within their ranges that survive being written and read again. */
#include "base/option.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct options {
    bool flag;
    int64_t count;
    double rate;
    const char *name;
    int choice;
    im_option_list list;
} options;

static const im_option rows[] = {
    {.name = "flag", .type = IM_OPT_BOOL, .fallback = "false", .help = "h", .offset = offsetof(options, flag)},
    {.name = "token-count", .type = IM_OPT_INT, .fallback = "3", .min = 1, .max = 1e12, .help = "h", .offset = offsetof(options, count)},
    {.name = "rate", .type = IM_OPT_REAL, .fallback = "0.5", .min = 0, .max = 1, .help = "h", .offset = offsetof(options, rate)},
    {.name = "name", .type = IM_OPT_STRING, .help = "h", .offset = offsetof(options, name)},
    {.name = "choice", .type = IM_OPT_CHOICE, .choices = "one|two|three", .fallback = "two", .help = "h", .offset = offsetof(options, choice)},
    {.name = "list", .type = IM_OPT_LIST, .help = "h", .offset = offsetof(options, list)},
};
enum { N = IM_COUNT_OF(rows) };

static im_status read(im_context *ctx, im_arena *a, const char *text, size_t size, options *o)
{
    im_json *doc;
    IM_TRY(im_option_defaults(ctx, rows, N, a, o));
    IM_TRY(im_yaml_parse(ctx, "fuzz", text, size, &doc));
    im_status status = im_option_from_yaml(ctx, rows, N, a, doc, im_json_root(doc), o, NULL, false);
    im_json_free(doc);
    return status;
}

static void check(im_context *ctx, im_arena *a, const options *o)
{
    if (o->count < 1 || o->count > 1000000000000 || !(o->rate >= 0 && o->rate <= 1) || o->choice < 0 || o->choice > 2)
        abort();
    im_str text = {0};
    options again;
    im_option_to_yaml(rows, N, o, &text);
    if (read(ctx, a, im_str_text(&text), text.len, &again) != IM_OK)
        abort();
    if (again.flag != o->flag || again.count != o->count || again.rate != o->rate || again.choice != o->choice || again.list.n != o->list.n)
        abort();
    if (!again.name != !o->name || (o->name && strcmp(again.name, o->name) != 0))
        abort();
    for (size_t i = 0; i < o->list.n; i++)
        if (strcmp(again.list.item[i], o->list.item[i]) != 0)
            abort();
    im_str_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_arena *a;
    options o;
    if (im_context_create(&ctx) != IM_OK)
        return 0;
    if (im_arena_create(ctx, &a) == IM_OK) {
        if (read(ctx, a, (const char *)data, size, &o) == IM_OK)
            check(ctx, a, &o);
        else if (!*im_error_text(ctx))
            abort();
        im_arena_destroy(a);
    }
    im_context_destroy(ctx);
    return 0;
}
