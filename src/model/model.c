/* model: opening a config, and the table of parameters and units that it means. */
#include "model/family.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 16 << 20 };

#define IM_FAMILY(name) &im_family_##name,
static const im_family *const families[] = {
#include "model/families.h"
};
#undef IM_FAMILY

const im_family *im_family_find(const char *model_type)
{
    for (size_t i = 0; i < IM_COUNT_OF(families); i++)
        if (strcmp(families[i]->model_type, model_type) == 0)
            return families[i];
    return NULL;
}

bool im_family_ignores(const im_family *f, const char *name)
{
    const size_t n = strlen(f->blocks);
    if (strncmp(name, f->blocks, n) != 0 || !isdigit((unsigned char)name[n]))
        return false;
    for (name += n; isdigit((unsigned char)*name);)
        name++;
    for (size_t i = 0; *name == '.' && f->buffers[i]; i++)
        if (strcmp(f->buffers[i], name + 1) == 0)
            return true;
    return false;
}

/* ---- the table under construction -------------------------------------- */

struct im_table {
    im_context *ctx;
    im_model *m;
    size_t param_cap, unit_cap;
    im_status status;
    int64_t elements;
};

/* Room for one more, in the model's arena: the old array stays there until the model dies, half the size of the new one at most. */
static void *grow(im_table *t, void *array, size_t n, size_t *cap, size_t size)
{
    void *room = im_arena_grow(t->m->arena, array, n, cap, size);
    if (!room)
        t->status = im_fail(t->ctx, IM_ERR_NOMEM, "no memory for the parameter table of %s", t->m->source);
    return room;
}

void im_model_add_unit(im_table *t, im_unit_type type, int32_t block)
{
    if (t->status != IM_OK)
        return;
    im_unit *unit = grow(t, t->m->unit, t->m->nunit, &t->unit_cap, sizeof *unit);
    if (!unit)
        return;
    t->m->unit = unit;
    unit += t->m->nunit++;
    *unit = (im_unit){.type = type, .block = block};
    for (int slot = 0; slot < IM_SLOT_COUNT; slot++)
        unit->param[slot] = -1;
}

void im_model_set_window(im_table *t, int64_t window)
{
    if (t->status == IM_OK)
        t->m->unit[t->m->nunit - 1].window = window;
}

void im_model_add_param(im_table *t, im_slot slot, im_init init, bool glue, int64_t rows, int64_t cols, const char *fmt, ...)
{
    if (t->status != IM_OK)
        return;
    im_param *param = grow(t, t->m->param, t->m->nparam, &t->param_cap, sizeof *param);
    if (!param)
        return;
    t->m->param = param;
    param += t->m->nparam;
    char name[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    *param = (im_param){
        .name = im_arena_strdup(t->m->arena, name),
        .ndim = cols ? 2 : 1,
        .shape = {rows, cols},
        .init = init,
        .decay = cols != 0,
        .glue = glue,
    };
    if (!param->name) {
        t->status = im_fail(t->ctx, IM_ERR_NOMEM, "no memory for the parameter table of %s", t->m->source);
        return;
    }
    int64_t count;
    /* 2^56 elements: with 16 bytes of state for each, byte counts still fit 63 bits */
    if (__builtin_mul_overflow(rows, cols ? cols : 1, &count) || __builtin_add_overflow(t->elements, count, &t->elements) ||
        t->elements > (int64_t)1 << 56) {
        t->status = im_fail(t->ctx, IM_ERR_FORMAT, "%s: the sizes make more than 2^56 parameters (at %s, %lld x %lld)", t->m->source, name,
                            (long long)rows, (long long)cols);
        return;
    }
    t->m->unit[t->m->nunit - 1].param[slot] = (int32_t)t->m->nparam++;
}

/* A tied token table is bucket 0; then one bucket for each unit that has parameters of its own. The units' parameters
 * stand behind one another in the table, so a bucket's do too. */
static im_status number_buckets(im_context *ctx, im_model *m)
{
    size_t next = 0, param = 0;
    if (m->arch.tied) {
        m->param[0].bucket = 0;
        param = next = 1;
    }
    for (size_t u = 0; u < m->nunit; u++) {
        size_t end = param;
        for (int slot = 0; slot < IM_SLOT_COUNT; slot++)
            if (m->unit[u].param[slot] >= (int32_t)end)
                end = (size_t)m->unit[u].param[slot] + 1;
        if (end == param)
            continue;
        for (; param < end; param++)
            m->param[param].bucket = (uint16_t)next;
        next++;
    }
    if (param != m->nparam || next > UINT16_MAX || m->nparam > UINT16_MAX)
        return im_fail(ctx, IM_ERR_INTERNAL, "%s: %zu parameters, %zu in buckets", m->source, m->nparam, param);
    m->nbucket = next;
    return IM_OK;
}

/* ---- parsing ------------------------------------------------------------ */

static im_status find_family(im_context *ctx, const im_json *doc, bool planning_only, const im_family **out)
{
    const im_json_value *root = im_json_root(doc);
    const char *type;
    IM_TRY(im_json_need_string(ctx, doc, root, "model_type", &type));
    if (planning_only && im_config_present(root, "imece_planning_as"))
        IM_TRY(im_json_need_string(ctx, doc, root, "imece_planning_as", &type));
    *out = im_family_find(type);
    if (*out)
        return IM_OK;
    char known[512] = "";
    for (size_t i = 0, at = 0; i < IM_COUNT_OF(families) && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", families[i]->model_type);
    return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: model_type \"%.60s\" is not implemented; implemented are: %s", im_json_name(doc), type, known);
}

static im_status refuse_quantised(im_context *ctx, const im_json *doc)
{
    const im_json_value *quant = im_json_get(im_json_root(doc), "quantization_config");
    if (im_json_type_of(quant) == IM_JSON_NULL)
        return IM_OK;
    return im_fail(ctx, IM_ERR_UNSUPPORTED,
                   "%s: quantization_config (quant_method \"%.60s\"): quantised weights are not implemented; use the unquantised model",
                   im_json_name(doc), im_json_string(im_json_get(quant, "quant_method"), "not named"));
}

/* Copies the document, so that the model outlives the caller's. */
static im_status copy_config(im_context *ctx, const im_json *config, im_json **out)
{
    im_str text = {0};
    im_config_write_value(im_json_root(config), &text);
    im_status status = text.failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory to copy %s", im_json_name(config))
                                   : im_json_parse(ctx, im_json_name(config), im_str_text(&text), text.len, out);
    im_str_free(&text);
    return status;
}

static im_status build_table(im_context *ctx, im_model *m, const im_family *family, double std)
{
    im_table table = {.ctx = ctx, .m = m};
    family->list(&table, m->config, &m->arch, std);
    IM_TRY(table.status);
    if (m->arch.tied)
        m->unit[m->nunit - 1].param[IM_SLOT_TOKENS] = m->unit[0].param[IM_SLOT_TOKENS];
    return number_buckets(ctx, m);
}

im_status im_model_parse(im_context *ctx, const im_json *config, im_model **out)
{
    im_status status;
    im_arena *arena = NULL;
    im_json *copy = NULL;
    const im_family *family;
    if (im_json_type_of(im_json_root(config)) != IM_JSON_OBJECT)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: a model's config is a JSON object", im_json_name(config));
    bool planning_only;
    IM_TRY(im_config_flag(ctx, config, "imece_planning_only", false, &planning_only));
    IM_TRY(find_family(ctx, config, planning_only, &family));
    IM_TRY(refuse_quantised(ctx, config));
    IM_TRY(im_config_refuse_foreign(ctx, config, family));
    double std;
    IM_TRY(im_config_real(ctx, config, im_json_root(config), "", "initializer_range", 0, 10, 0.02, &std));

    IM_TRY(im_arena_create(ctx, &arena));
    im_model *m = IM_ARENA_NEW(arena, im_model, 1);
    if (!m) {
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory for the model of %s", im_json_name(config));
        goto free_arena;
    }
    m->arena = arena;
    IM_TRY_GOTO(copy_config(ctx, config, &copy), free_arena);
    m->config = copy;
    m->source = im_json_name(copy);
    m->planning_only = planning_only;
    m->family = im_json_string(im_json_get(im_json_root(copy), "model_type"), family->model_type);
    IM_TRY_GOTO(family->read(ctx, copy, &m->arch), free_copy);
    IM_TRY_GOTO(build_table(ctx, m, family, std), free_copy);
    *out = m;
    return IM_OK;

free_copy:
    im_json_free(copy);
free_arena:
    im_arena_destroy(arena);
    return status;
}

void im_model_close(im_model *m)
{
    if (!m)
        return;
    im_json_free(m->config);
    im_arena_destroy(m->arena);
}

/* ---- opening by name ------------------------------------------------------ */

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

im_status im_model_list(im_context *ctx, const char *models_dir, im_arena *a, const char ***names, size_t *n)
{
    im_status status = IM_OK;
    DIR *dir = opendir(models_dir);
    if (!dir)
        return im_fail_errno(ctx, "%s: the directory of named models cannot be read", models_dir);
    const char **list = NULL;
    size_t count = 0, cap = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!ends_with(entry->d_name, ".json") || entry->d_name[0] == '.')
            continue;
        list = im_arena_grow(a, list, count, &cap, sizeof *list);
        char *name = list ? im_arena_strdup(a, entry->d_name) : NULL;
        if (!name) {
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory for the names in %s", models_dir);
            goto close_dir;
        }
        name[strlen(name) - strlen(".json")] = '\0';
        list[count++] = name;
    }
    if (count)
        qsort(list, count, sizeof *list, compare_names);
    *names = list;
    *n = count;
close_dir:
    closedir(dir);
    return status;
}

static im_status fail_unknown(im_context *ctx, const char *what, const char *models_dir)
{
    im_arena *a;
    IM_TRY(im_arena_create(ctx, &a));
    const char **names = NULL;
    size_t n = 0;
    im_status status = im_model_list(ctx, models_dir, a, &names, &n);
    if (status == IM_OK) {
        const char *near = im_nearest_name(what, names, n);
        if (near)
            status = im_fail(ctx, IM_ERR_NOT_FOUND, "no model \"%s\": neither a directory nor a named shape; did you mean %s?", what, near);
        else
            status = im_fail(ctx, IM_ERR_NOT_FOUND, "no model \"%s\": neither a directory nor a named shape (`imece model list` shows the %zu in %s)",
                             what, n, models_dir);
    }
    im_arena_destroy(a);
    return status;
}

/* The path of config.json that `what` means. */
static im_status locate(im_context *ctx, const char *what, const char *models_dir, im_str *path)
{
    if (im_path_is_dir(what)) {
        im_str_printf(path, "%s%sconfig.json", what, ends_with(what, "/") ? "" : "/");
        if (!im_path_exists(im_str_text(path)))
            return im_fail(ctx, IM_ERR_NOT_FOUND,
                           "%s: there is no config.json: a model is a Hugging Face directory with config.json and model.safetensors", what);
        return IM_OK;
    }
    if (ends_with(what, ".json") || !models_dir || strchr(what, '/')) {
        im_str_append(path, what);
        if (!im_path_exists(what))
            return im_fail(ctx, IM_ERR_NOT_FOUND, "%s: there is no such file or directory%s", what,
                           strchr(what, '/') ? " (models are not downloaded: give the directory that holds config.json)" : "");
        if (!ends_with(what, ".json"))
            return im_fail(ctx, IM_ERR_ARG, "%s: a model is a directory with config.json, or a .json file", what);
        return IM_OK;
    }
    im_str_printf(path, "%s/%s.json", models_dir, what);
    return im_path_exists(im_str_text(path)) ? IM_OK : fail_unknown(ctx, what, models_dir);
}

im_status im_model_open(im_context *ctx, const char *what, const char *models_dir, im_model **out)
{
    im_status status;
    im_str path = {0};
    im_json *doc;
    im_model *m;
    IM_TRY_GOTO(locate(ctx, what, models_dir, &path), free_path);
    IM_TRY_GOTO(im_json_load(ctx, im_str_text(&path), CONFIG_MAX_BYTES, &doc), free_path);
    IM_TRY_GOTO(im_model_parse(ctx, doc, &m), free_doc);
    if (im_path_is_dir(what)) {
        m->dir = im_arena_strdup(m->arena, what);
        if (!m->dir) {
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory for the model of %s", what);
            im_model_close(m);
            goto free_doc;
        }
    }
    *out = m;
free_doc:
    im_json_free(doc);
free_path:
    im_str_free(&path);
    return status;
}

im_status im_model_need_runnable(im_context *ctx, const im_model *m)
{
    if (!m->planning_only)
        return IM_OK;
    return im_fail(ctx, IM_ERR_UNSUPPORTED, "%s: this shape (model_type \"%.60s\") is for planning only: its family is not implemented", m->source,
                   m->family);
}

/* ---- what one asks a model -------------------------------------------------- */

int64_t im_param_count(const im_param *p)
{
    int64_t count = 1;
    for (int i = 0; i < p->ndim; i++)
        count *= p->shape[i];
    return count;
}

int64_t im_model_param_count(const im_model *m)
{
    int64_t count = 0;
    for (size_t i = 0; i < m->nparam; i++)
        count += im_param_count(&m->param[i]);
    return count;
}

int32_t im_model_find_param(const im_model *m, const char *name)
{
    for (size_t i = 0; i < m->nparam; i++)
        if (strcmp(m->param[i].name, name) == 0)
            return (int32_t)i;
    return -1;
}

/* A weight of n elements costs 2n FLOPs a token forward and 4n backward. Scores and their use cost 2 H E FLOPs each for every
 * (query, key): 12 L H E T a token with the backward, as in PaLM's appendix B: the causal mask's saving is not
 * subtracted, so that figures compare with what others print; a window shorter than T counts as T. Table lookups are no matmul. */
double im_model_flops_per_token(const im_model *m, int64_t seq_len)
{
    double weights = (double)m->arch.V * (double)m->arch.D, keys = 0; /* the head, tied or not */
    for (size_t u = 0; u < m->nunit; u++) {
        const int64_t window = m->unit[u].window;
        if (m->unit[u].type == IM_UNIT_BLOCK)
            keys += (double)(window && window < seq_len ? window : seq_len);
        for (int slot = 0; slot < IM_SLOT_COUNT && m->unit[u].type == IM_UNIT_BLOCK; slot++) {
            const int32_t p = m->unit[u].param[slot];
            if (p >= 0 && m->param[p].ndim >= 2)
                weights += (double)im_param_count(&m->param[p]);
        }
    }
    return 6 * weights + 12.0 * (double)(m->arch.H * m->arch.E) * keys;
}

/* ---- config.json for a checkpoint --------------------------------------------- */

/* Keys that im_model_config_text writes itself, or that would be untrue in a file of ours. */
static bool rewritten(const char *key, const im_family *family)
{
    static const char *const always[] = {"architectures",       "model_type",           "dtype",        "torch_dtype",
                                         "tie_word_embeddings", "transformers_version", "_name_or_path"};
    for (size_t i = 0; i < IM_COUNT_OF(always); i++)
        if (strcmp(key, always[i]) == 0)
            return true;
    return strncmp(key, "imece_", 6) == 0 || (family->rope && im_rope_writes(family->rope, key));
}

im_status im_model_config_text(im_context *ctx, const im_model *m, im_dtype stored, im_str *out)
{
    const char *dtype = stored == IM_F32 ? "float32" : stored == IM_BF16 ? "bfloat16" : stored == IM_F16 ? "float16" : NULL;
    const im_family *family = im_family_find(m->family);
    if (!dtype || !family)
        return im_fail(ctx, IM_ERR_INTERNAL, "no config.json for %s stored as %s", m->family, im_dtype_name(stored));
    const im_json_value *root = im_json_root(m->config);
    im_str text = {0};
    im_str_append(&text, "{\n  \"architectures\": ");
    if (im_config_present(root, "architectures"))
        im_config_write_value(im_json_get(root, "architectures"), &text);
    else
        im_str_printf(&text, "[\"%s\"]", family->architecture);
    im_str_printf(&text, ",\n  \"model_type\": \"%s\"", family->model_type);
    for (size_t i = 0; i < im_json_length(root); i++) {
        const char *key;
        const im_json_value *value = im_json_member(root, i, &key);
        if (rewritten(key, family))
            continue;
        im_str_append(&text, ",\n  ");
        im_str_json_string(&text, key, strlen(key));
        im_str_append(&text, ": ");
        im_config_write_value(value, &text);
    }
    /* each version of Transformers has its own default for these: always said, in both spellings */
    if (family->rope)
        im_rope_write(&m->arch, family->rope, &text);
    im_str_printf(&text, ",\n  \"tie_word_embeddings\": %s", m->arch.tied ? "true" : "false");
    im_str_printf(&text, ",\n  \"torch_dtype\": \"%s\",\n  \"dtype\": \"%s\"\n}\n", dtype, dtype);
    im_str_append_n(out, im_str_text(&text), text.len);
    const bool failed = text.failed || out->failed;
    im_str_free(&text);
    return failed ? im_fail(ctx, IM_ERR_NOMEM, "no memory for the text of config.json") : IM_OK;
}
