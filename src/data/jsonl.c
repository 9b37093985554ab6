/* Lines of .jsonl files: {"text": ...}; {"messages": [{"role": ..., "content": ...}, ...]}; {"prompt": ..., "completion": ...}, both texts or both lists
 * of messages. */
#include "base/json.h"
#include "data/encoder.h"

#include <string.h>

enum { MOST_TURNS = 4096 };

/* What stands under a key instead, for messages. */
static const char *kind_of(const im_json_value *v)
{
    static const char *const name[] = {"null", "true or false", "a number", "a number", "a text", "a list", "an object"};
    return name[im_json_type_of(v)];
}

static im_status fail(im_context *ctx, const im_json *doc, int64_t line, const char *what, const im_json_value *v)
{
    return im_fail(ctx, IM_ERR_FORMAT, "%s: line %lld: %s%s%s", im_json_name(doc), (long long)line, what, v ? ", not " : "", v ? kind_of(v) : "");
}

static im_status need_object(im_context *ctx, const im_json *doc, int64_t line)
{
    const im_json_value *root = im_json_root(doc);
    return im_json_type_of(root) == IM_JSON_OBJECT ? IM_OK : fail(ctx, doc, line, "an object is expected", root);
}

im_status im_jsonl_text(im_context *ctx, const im_json *doc, int64_t line, const char *field, const char **text, size_t *n)
{
    IM_TRY(need_object(ctx, doc, line));
    const im_json_value *v = im_json_get(im_json_root(doc), field);
    if (!v)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: line %lld: no key \"%s\" (--field names the key of the text)", im_json_name(doc), (long long)line,
                       field);
    if (im_json_type_of(v) != IM_JSON_STRING)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: line %lld: \"%s\" is %s; a text is expected", im_json_name(doc), (long long)line, field, kind_of(v));
    *text = im_json_string(v, "");
    *n = im_json_string_len(v);
    return IM_OK;
}

/* A role is a word: it goes into the header of a turn. */
static bool is_role(const char *role)
{
    size_t n = strlen(role);
    return n > 0 && n <= 64 && !strpbrk(role, "\n\r<>|:");
}

static im_status read_turns(im_context *ctx, const im_json *doc, int64_t line, const im_json_value *list, bool counted, im_chat_turn *turn, size_t *n)
{
    size_t all = im_json_length(list);
    if (im_json_type_of(list) != IM_JSON_ARRAY || !all)
        return fail(ctx, doc, line, "a list of messages is expected, [{\"role\": ..., \"content\": ...}, ...]", list);
    if (*n + all > MOST_TURNS)
        return fail(ctx, doc, line, "more than 4096 messages", NULL);
    for (size_t i = 0; i < all; i++) {
        const im_json_value *m = im_json_at(list, i), *role = im_json_get(m, "role"), *content = im_json_get(m, "content");
        if (im_json_type_of(role) != IM_JSON_STRING || !is_role(im_json_string(role, "")))
            return fail(ctx, doc, line, "a message's role is a word such as user or assistant", NULL);
        if (im_json_type_of(content) != IM_JSON_STRING)
            return fail(ctx, doc, line, "a message's content is a text", content);
        turn[(*n)++] = (im_chat_turn){
            .role = im_json_string(role, ""), .text = im_json_string(content, ""), .n = im_json_string_len(content), .counted = counted};
    }
    return IM_OK;
}

static im_status put_turns(im_context *ctx, const im_json *doc, int64_t line, im_chat *chat, const im_chat_turn *turn, size_t n, im_chat_ids *out)
{
    size_t learned = 0;
    for (size_t i = 0; i < n; i++)
        learned += turn[i].counted && !strcmp(turn[i].role, "assistant");
    if (!learned)
        return fail(ctx, doc, line, "no message of the assistant that could be learned", NULL);
    return im_chat_turns(chat, turn, n, false, out);
}

im_status im_jsonl_chat(im_context *ctx, const im_json *doc, int64_t line, im_chat *chat, im_chat_ids *out)
{
    IM_TRY(need_object(ctx, doc, line));
    im_chat_turn turn[MOST_TURNS];
    size_t n = 0;
    const im_json_value *root = im_json_root(doc), *messages = im_json_get(root, "messages"), *prompt = im_json_get(root, "prompt"),
                        *completion = im_json_get(root, "completion");
    if (messages) {
        IM_TRY(read_turns(ctx, doc, line, messages, true, turn, &n));
        return put_turns(ctx, doc, line, chat, turn, n, out);
    }
    if (!prompt || !completion)
        return fail(ctx, doc, line, "\"messages\", or \"prompt\" and \"completion\", are expected", NULL);
    if (im_json_type_of(prompt) == IM_JSON_STRING && im_json_type_of(completion) == IM_JSON_STRING)
        return im_chat_completion(chat, im_json_string(prompt, ""), im_json_string_len(prompt), im_json_string(completion, ""),
                                  im_json_string_len(completion), out);
    IM_TRY(read_turns(ctx, doc, line, prompt, false, turn, &n));
    IM_TRY(read_turns(ctx, doc, line, completion, true, turn, &n));
    return put_turns(ctx, doc, line, chat, turn, n, out);
}
