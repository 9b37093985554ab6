/* The token files of a run, with their fingerprints, in its plan.yaml: so that a resume can say which of them has changed. */
#include "train/internal.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void im_train_data_yaml(const im_train_run *r, im_str *out)
{
    char real[IM_TRAIN_PATH];
    im_str_append(out, "files:\n");
    for (size_t i = 0; i < im_feed_files(r->data); i++) {
        im_feed_name x = im_feed_file_of(r->data, i);
        char *bin = im_arena_printf(r->arena, "%s.bin", x.name);
        const char *name = bin && realpath(bin, real) && strlen(real) > 4 ? (real[strlen(real) - 4] = '\0', real) : x.name;
        im_str_append(out, "  - {name: ");
        im_str_json_string(out, name, strlen(name));
        im_str_printf(out, ", fingerprint: \"%016" PRIx64 "\", tokens: %" PRId64 "}\n", x.fingerprint, x.tokens);
    }
}

static const im_json_value *entry_of(const im_json_value *list, const char *key, const char *text)
{
    for (size_t i = 0; i < im_json_length(list); i++)
        if (!strcmp(im_json_string(im_json_get(im_json_at(list, i), key), ""), text))
            return im_json_at(list, i);
    return NULL;
}

static void add(im_str *out, const char *name, const char *what)
{
    if (out->len < 400)
        im_str_printf(out, "%s%s %s", out->len ? "; " : "", name, what);
}

static void compare(const im_train_run *r, const im_json_value *was, const im_json_value *is, im_str *out)
{
    for (size_t i = 0; i < im_json_length(is); i++) {
        const im_json_value *x = im_json_at(is, i);
        const char *name = im_json_string(im_json_get(x, "name"), "");
        const im_json_value *y = entry_of(was, "name", name);
        if (!y)
            add(out, name, "is new");
        else if (strcmp(im_json_string(im_json_get(x, "fingerprint"), ""), im_json_string(im_json_get(y, "fingerprint"), "")))
            add(out, name, "has changed");
    }
    for (size_t i = 0; i < im_json_length(was); i++) {
        const char *name = im_json_string(im_json_get(im_json_at(was, i), "name"), "");
        if (!entry_of(is, "name", name))
            add(out, name, "is missing");
    }
    if (!out->len && im_json_length(was))
        im_str_append(out, r->o.valid_share > 0 ? "the files are the same, their weights, their order or valid-share are not"
                                                : "the files are the same, their weights or their order are not");
}

void im_train_data_changes(const im_train_run *r, const char *plan, im_str *out)
{
    im_context *quiet; /* a plan.yaml that cannot be read is no error: it is only asked for a better message */
    im_json *was = NULL, *is = NULL;
    im_str now = {0};
    im_train_data_yaml(r, &now);
    if (im_context_create(&quiet) != IM_OK)
        goto free_text;
    if (im_yaml_load(quiet, plan, (size_t)64 << 20, &was) == IM_OK && im_yaml_parse(quiet, "the data", im_str_text(&now), now.len, &is) == IM_OK)
        compare(r, im_json_get(im_json_get(im_json_root(was), "data"), "files"), im_json_get(im_json_root(is), "files"), out);
    im_json_free(is);
    im_json_free(was);
    im_context_destroy(quiet);
free_text:
    im_str_free(&now);
}
