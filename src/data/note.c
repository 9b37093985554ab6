#include "data/note.h"
#include "base/json.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, MOST_BYTES = 1 << 20 };

typedef struct number {
    const char *key;
    size_t offset;
} number;

#define OF_NOTE(member) offsetof(im_note, member)
static const number note_numbers[] = {{"input", OF_NOTE(at.input)},   {"offset", OF_NOTE(at.offset)}, {"line", OF_NOTE(at.line)},
                                      {"before", OF_NOTE(at.before)}, {"text", OF_NOTE(at.text)},     {"document", OF_NOTE(document)},
                                      {"bad", OF_NOTE(bad)},          {"read", OF_NOTE(read)}};
#define OF_PLACE(member) offsetof(im_tokens_place, member)
static const number place_numbers[] = {{"tokens", OF_PLACE(tokens)},   {"sequences", OF_PLACE(sequences)},  {"documents", OF_PLACE(documents)},
                                       {"longest", OF_PLACE(longest)}, {"min_id", OF_PLACE(min_id)},        {"max_id", OF_PLACE(max_id)},
                                       {"counted", OF_PLACE(counted)}, {"text_bytes", OF_PLACE(text_bytes)}};

static void put_numbers(im_str *s, const number *row, size_t n, const void *from)
{
    for (size_t i = 0; i < n; i++) {
        int64_t x;
        memcpy(&x, (const char *)from + row[i].offset, sizeof x);
        im_str_printf(s, "%s\"%s\": %" PRId64, i ? ", " : "", row[i].key, x);
    }
}

im_status im_note_write(im_context *ctx, const char *path, const im_note *n)
{
    im_str s = {0};
    im_str_printf(&s, "{\"format\": %d, \"options\": ", FORMAT);
    im_str_json_string(&s, n->options, strlen(n->options));
    im_str_printf(&s, ", \"inputs\": \"%016" PRIx64 "\", \"first_bad\": ", n->inputs);
    im_str_json_string(&s, n->first_bad, strlen(n->first_bad));
    im_str_append(&s, ", ");
    put_numbers(&s, note_numbers, IM_COUNT_OF(note_numbers), n);
    im_str_append(&s, ", \"files\": [");
    for (int i = 0; i < n->writers; i++) {
        im_str_append(&s, i ? ", {" : "{");
        put_numbers(&s, place_numbers, IM_COUNT_OF(place_numbers), &n->place[i]);
        im_str_append(&s, "}");
    }
    im_str_append(&s, "]}\n");
    im_status status = s.failed ? im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for its text", path) : im_file_write_atomic(ctx, path, s.data, s.len);
    im_str_free(&s);
    return status;
}

static im_status get_numbers(im_context *ctx, const im_json *doc, const im_json_value *from, const number *row, size_t n, void *to)
{
    for (size_t i = 0; i < n; i++) {
        int64_t x;
        IM_TRY(im_json_need_int(ctx, doc, from, row[i].key, -2, INT64_MAX, &x));
        memcpy((char *)to + row[i].offset, &x, sizeof x);
    }
    return IM_OK;
}

static im_status parse(im_context *ctx, const im_json *doc, im_note *n)
{
    const im_json_value *root = im_json_root(doc), *files = im_json_get(root, "files");
    const char *options, *inputs, *first_bad;
    int64_t format;
    IM_TRY(im_json_need_int(ctx, doc, root, "format", FORMAT, FORMAT, &format));
    IM_TRY(get_numbers(ctx, doc, root, note_numbers, IM_COUNT_OF(note_numbers), n));
    IM_TRY(im_json_need_string(ctx, doc, root, "options", &options));
    IM_TRY(im_json_need_string(ctx, doc, root, "inputs", &inputs));
    IM_TRY(im_json_need_string(ctx, doc, root, "first_bad", &first_bad));
    size_t nfile = im_json_length(files);
    if (im_json_type_of(files) != IM_JSON_ARRAY || nfile < 1 || nfile > 2 || strlen(first_bad) >= sizeof n->first_bad)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: not the note of a build", im_json_name(doc));
    for (size_t i = 0; i < nfile; i++)
        IM_TRY(get_numbers(ctx, doc, im_json_at(files, i), place_numbers, IM_COUNT_OF(place_numbers), &n->place[i]));
    for (size_t i = 0; i < nfile; i++)
        if (n->place[i].tokens < 0 || n->place[i].sequences < 0 || n->place[i].tokens > INT64_MAX / 16 || n->place[i].sequences > INT64_MAX / 16)
            return im_fail(ctx, IM_ERR_FORMAT, "%s: files[%zu] has impossible sizes", im_json_name(doc), i);
    if (n->at.input < 0 || n->at.offset < 0 || n->at.line < 0 || n->document < 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: an impossible place", im_json_name(doc));
    n->writers = (int)nfile;
    n->inputs = strtoull(inputs, NULL, 16);
    memcpy(n->first_bad, first_bad, strlen(first_bad) + 1);
    n->options = strdup(options);
    return n->options ? IM_OK : im_fail(ctx, IM_ERR_NOMEM, "%s: no memory", im_json_name(doc));
}

im_status im_note_read(im_context *ctx, const char *path, im_note *out)
{
    im_json *doc;
    im_note n = {0};
    IM_TRY(im_json_load(ctx, path, MOST_BYTES, &doc));
    im_status status = parse(ctx, doc, &n);
    im_json_free(doc);
    if (status == IM_OK)
        *out = n;
    return status;
}

im_status im_note_compare(im_context *ctx, const char *path, const im_note *was, const im_note *is)
{
    const char *a = was->options, *b = is->options;
    while (*a && *b) {
        size_t n = strcspn(a, ";"), m = strcspn(b, ";");
        if (n != m || memcmp(a, b, n) != 0)
            return im_fail(ctx, IM_ERR_ARG, "%s: the interrupted build had %.*s, this one has %.*s: only the same build can be gone on with", path,
                           (int)n, a, (int)m, b);
        a += n + (a[n] != 0);
        b += m + (b[m] != 0);
    }
    if (*a || *b || was->writers != is->writers)
        return im_fail(ctx, IM_ERR_ARG, "%s: an interrupted build with other options, or of another version", path);
    if (was->inputs != is->inputs)
        return im_fail(ctx, IM_ERR_ARG, "%s: the inputs are not those of the interrupted build: names, sizes or times of files have changed", path);
    return IM_OK;
}
