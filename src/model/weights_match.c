/* Do the files hold the parameters that the config promises? Nothing missing, nothing left over, every shape as it should be. */
#include "model/family.h"
#include "model/st.h"

#include <stdlib.h>
#include <string.h>

enum { NAMES_SHOWN = 3 };

/* A list of names for a message: the first three, and how many there are. */
typedef struct name_list {
    im_str text;
    size_t n;
} name_list;

static void list_name(name_list *list, const char *name)
{
    char shown[120];
    if (list->n < NAMES_SHOWN)
        im_str_printf(&list->text, "%s%s", list->n ? ", " : "", im_st_show(shown, sizeof shown, name));
    else if (list->n == NAMES_SHOWN)
        im_str_append(&list->text, ", ...");
    list->n++;
}

static const im_st_tensor *find(const im_weights *w, const char *name, const char *prefix)
{
    const im_st_tensor *t = im_weights_find(w, name);
    const size_t n = strlen(prefix);
    if (!t && strncmp(name, prefix, n) == 0)
        t = im_weights_find(w, name + n);
    return t;
}

static im_status check_tensor(im_context *ctx, const im_weights *w, const im_model *m, const im_param *p, const im_st_tensor *t)
{
    if (t->ndim != p->ndim || memcmp(t->shape, p->shape, p->ndim * sizeof *p->shape) != 0) {
        char has[200], wants[200];
        return im_fail(ctx, IM_ERR_FORMAT, "%s: tensor %s has shape %s, but %s makes it %s", im_weights_path(w, t), t->name,
                       im_st_show_shape(has, sizeof has, t->shape, t->ndim), m->source, im_st_show_shape(wants, sizeof wants, p->shape, p->ndim));
    }
    if (!t->known_dtype || (t->dtype != IM_F32 && t->dtype != IM_BF16 && t->dtype != IM_F16 && t->dtype != IM_F64)) {
        char shown[60];
        return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: tensor %s has dtype %s: weights are read from F32, BF16, F16 and F64 (quantised ones are not)",
                       im_weights_path(w, t), t->name, im_st_show(shown, sizeof shown, t->dtype_name));
    }
    return IM_OK;
}

/* A head in the files of a tied model must be the token table itself. */
static im_status check_tied_head(im_context *ctx, const im_weights *w, const im_model *m, const im_st_tensor *table, const im_st_tensor *head)
{
    enum { CHUNK = 1 << 16 };
    bool equal = head->ndim == table->ndim && memcmp(head->shape, table->shape, sizeof head->shape) == 0;
    const int64_t elements = im_param_count(&m->param[0]);
    void *memory = NULL;
    if (equal)
        IM_TRY(im_alloc(ctx, 2 * CHUNK, sizeof(float), &memory));
    float *a = memory, *b = a ? a + CHUNK : NULL;
    im_status status = IM_OK;
    for (int64_t i = 0; i < elements && equal && status == IM_OK; i += CHUNK) {
        const int64_t n = elements - i < CHUNK ? elements - i : CHUNK;
        status = im_weights_read(ctx, w, table, i, n, IM_F32, a);
        if (status == IM_OK)
            status = im_weights_read(ctx, w, head, i, n, IM_F32, b);
        equal = status != IM_OK || memcmp(a, b, (size_t)n * sizeof *a) == 0;
    }
    free(memory);
    im_weights_release(w, table);
    im_weights_release(w, head);
    IM_TRY(status);
    if (equal)
        return IM_OK;
    return im_fail(ctx, IM_ERR_FORMAT,
                   "%s: %s differs from %s, but %s ties them: set \"tie_word_embeddings\": false there to use both, or remove %s from the file",
                   im_weights_path(w, head), head->name, table->name, m->source, head->name);
}

/* Tensors that no parameter uses: buffers of old files are passed over, everything else is refused. */
static im_status check_rest(im_context *ctx, const im_weights *w, const im_model *m, const im_family *family, const bool *used,
                            const im_st_tensor *const *tensor_of)
{
    const size_t prefix = strlen(family->prefix);
    name_list extra = {0};
    const im_st_tensor *first = NULL;
    for (size_t i = 0; i < im_weights_count(w); i++) {
        const im_st_tensor *t = im_weights_at(w, i);
        const char *name = strncmp(t->name, family->prefix, prefix) == 0 ? t->name + prefix : t->name;
        if (used[i] || im_family_ignores(family, name))
            continue;
        if (m->arch.tied && strcmp(t->name, family->head) == 0) {
            im_status status = check_tied_head(ctx, w, m, tensor_of[0], t);
            if (status == IM_OK)
                continue;
            im_str_free(&extra.text);
            return status;
        }
        if (!first)
            first = t;
        list_name(&extra, t->name);
    }
    im_status status = IM_OK;
    if (extra.n)
        status = im_fail(ctx, IM_ERR_FORMAT, "%s: %zu tensor%s that %s (%s) has no place for: %s", im_weights_path(w, first), extra.n,
                         extra.n == 1 ? "" : "s", m->source, m->family, im_str_text(&extra.text));
    im_str_free(&extra.text);
    return status;
}

static im_status fail_missing(im_context *ctx, const im_weights *w, const im_model *m, const im_family *family, name_list *missing)
{
    const im_st_tensor *any = im_weights_at(w, 0);
    const bool only_head = missing->n == 1 && strcmp(im_str_text(&missing->text), family->head) == 0;
    im_status status =
        im_fail(ctx, IM_ERR_FORMAT, "%s: %zu tensor%s that %s (%s) needs %s missing: %s%s", any ? im_weights_path(w, any) : "the weights", missing->n,
                missing->n == 1 ? "" : "s", m->source, m->family, missing->n == 1 ? "is" : "are", im_str_text(&missing->text),
                only_head ? " (when the head is the token table, set \"tie_word_embeddings\": true)" : "");
    return status;
}

im_status im_weights_match(im_context *ctx, const im_weights *w, const im_model *m, const im_st_tensor **tensor_of)
{
    IM_TRY(im_model_need_runnable(ctx, m));
    const im_family *family = im_family_find(m->family);
    if (!family)
        return im_fail(ctx, IM_ERR_INTERNAL, "%s: no family %s", m->source, m->family);
    void *memory = NULL, *flags = NULL;
    name_list missing = {0};
    im_status status;
    IM_TRY_GOTO(im_alloc(ctx, m->nparam + 1, sizeof(im_st_tensor *), &memory), free_all);
    IM_TRY_GOTO(im_alloc(ctx, im_weights_count(w) + 1, sizeof(bool), &flags), free_all);
    const im_st_tensor **found = memory;
    bool *used = flags;
    for (size_t i = 0; i < m->nparam; i++) {
        found[i] = find(w, m->param[i].name, family->prefix);
        if (!found[i]) {
            list_name(&missing, m->param[i].name);
            continue;
        }
        used[found[i] - im_weights_at(w, 0)] = true;
        IM_TRY_GOTO(check_tensor(ctx, w, m, &m->param[i], found[i]), free_all);
    }
    if (missing.n) {
        status = fail_missing(ctx, w, m, family, &missing);
        goto free_all;
    }
    IM_TRY_GOTO(check_rest(ctx, w, m, family, used, found), free_all);
    memcpy(tensor_of, found, m->nparam * sizeof *found);
free_all:
    im_str_free(&missing.text);
    free(memory);
    free(flags);
    return status;
}
