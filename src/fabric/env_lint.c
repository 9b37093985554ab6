/* Judging settings: names, versions, types, ranges; then the rules of single variables and of several together. */
#include "fabric/env_rules.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- what rules use ------------------------------------------------------------------------------------ */

static char *keep(im_env_case *c, const char *fmt, va_list ap)
{
    im_str s = {0};
    im_str_vprintf(&s, fmt, ap);
    char *kept = im_arena_strdup(c->set->arena, im_str_text(&s));
    if (s.failed || !kept)
        c->set->failed = true;
    im_str_free(&s);
    return kept;
}

void im_env_fix(im_env_case *c, im_env_finding *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = keep(c, fmt, ap);
    va_end(ap);
    if (f)
        f->fix = text;
}

im_env_finding *im_env_evidence(im_env_case *c, im_env_finding *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = keep(c, fmt, ap);
    va_end(ap);
    if (f)
        f->evidence = text;
    return f;
}

int im_env_from(const im_env_case *c, int version)
{
    return c->nccl_known ? c->nccl / 100 >= version / 100 : -1;
}

bool im_env_is_set(const im_env_case *c, const char *name)
{
    const im_env_item *x = im_env_used(c->set, name);
    return x && x->exported && !(x->value && !*x->value);
}

const char *im_env_text(const im_env_case *c, const char *name)
{
    const im_env_item *x = im_env_used(c->set, name);
    return x && x->exported && x->value && *x->value ? x->value : NULL;
}

bool im_env_int(const im_env_case *c, const char *name, int64_t *out)
{
    const im_env_step *s = im_env_at(name, c->nccl);
    const im_env_var *v = im_env_find(name);
    const char *text = im_env_text(c, name);
    if (text) {
        im_env_number n = im_env_nccl_int(text);
        if (!n.overflow) {
            *out = n.value;
            return true;
        }
    } else if (im_env_is_set(c, name)) {
        return false; /* to something that is not known here */
    }
    if (s && s->is_number) {
        *out = s->number;
        return true;
    }
    if (v && v->fallback && v->family == IM_ENV_NCCL) {
        im_env_number n = im_env_nccl_int(v->fallback);
        *out = n.value;
        return n.digits && !*n.trailing;
    }
    return false;
}

void im_env_name_ports(const im_env_port *const *port, size_t n, im_str *out)
{
    enum { SHOWN = 4 };
    for (size_t i = 0; i < n && (i < SHOWN || n == SHOWN + 1); i++)
        im_str_printf(out, "%s%s:%d", i == 0 ? "" : i + 1 == n ? " and " : ", ", port[i]->device, port[i]->port);
    if (n > SHOWN + 1)
        im_str_printf(out, " and %zu more", n - SHOWN);
}

void im_env_list_faults(im_env_case *c, im_env_item *x, const im_env_list *l)
{
    const char *v = x->value;
    if (l->turned) {
        im_env_finding *f = im_env_say(c, IM_ENV_FAIL, "list-turned", x,
                                       "=^ is the wrong way round: the ^ is read as a part of the first name, and nothing is left out");
        im_env_fix(c, f, "%s=^=%s", x->name, v + 2);
    }
    if (strpbrk(v, " \t")) {
        im_str s = {0};
        for (const char *p = v; *p; p++)
            if (*p != ' ' && *p != '\t')
                im_str_append_n(&s, p, 1);
        im_env_finding *f = im_env_say(c, IM_ENV_FAIL, "list-blanks", x, "blanks are a part of the names: what stands behind one fits no device");
        im_env_fix(c, f, "%s=%s", x->name, im_str_text(&s));
        im_str_free(&s);
    }
    if (l->cut)
        im_env_say(c, IM_ENV_WARN, "list-long", x, "the list is longer than what NCCL keeps: its end is not read");
}

size_t im_env_split(im_arena *a, const char *text, char stop, const char **out, size_t most)
{
    size_t n = 0;
    while (n < most) {
        const char *at = strchr(text, stop);
        char *one = im_arena_printf(a, "%.*s", at ? (int)(at - text) : (int)strlen(text), text);
        if (!one)
            return n;
        out[n++] = one;
        if (!at)
            return n;
        text = at + 1;
    }
    return n;
}

/* ---- names and versions ---------------------------------------------------------------------------------- */

static void unknown_name(im_env_case *c, im_env_item *x)
{
    const char *near = im_env_nearest(c->set->arena, x->name), *owner = im_env_open_family(x->name);
    bool nccl = !strncmp(x->name, "NCCL_", 5), ucx = !strncmp(x->name, "UCX_", 4);
    if (near && (nccl || ucx || !owner || im_edit_distance(x->name, near) <= 2)) {
        im_env_finding *f = im_env_say(c, ucx ? IM_ENV_WARN : IM_ENV_FAIL, "name-misspelt", x, "there is no %s%s; did you mean %s?", x->name,
                                       ucx    ? " in the tables here"
                                       : nccl ? " in any NCCL up to 2.30, and NCCL is silent about names that it does not know"
                                              : "",
                                       near);
        im_env_fix(c, f, "%s=%s", near, x->value ? x->value : "...");
    } else if (owner) {
        im_env_say(c, IM_ENV_UNKNOWN, "name-unknown", x, "a variable of %s that is not in the tables here: not judged", owner);
    } else if (nccl) {
        im_env_say(c, IM_ENV_WARN, "name-unknown", x,
                   "no NCCL from 2.7 to 2.30 reads this name: it does nothing, unless a plug-in or a program of yours reads it");
    } else {
        im_env_say(c, IM_ENV_UNKNOWN, "name-unknown", x, "not in the tables here: not judged");
    }
}

static void check_versions(im_env_case *c, im_env_item *x, const im_env_var *v)
{
    int gone, since = im_env_since(x->name, &gone);
    char a[16], b[16];
    if (v && v->instead) {
        const char *at = strstr(v->instead, " 2."); /* "gone in 2.22", "deprecated since 2.17" */
        bool later = at && v->family == IM_ENV_NCCL && c->nccl_known && c->nccl / 100 % 100 < atoi(at + 3);
        im_env_say(c, later || v->family == IM_ENV_MCA ? IM_ENV_NOTE : IM_ENV_WARN, "name-obsolete", x, "%s%s", v->instead,
                   later ? "; this version still reads it" : "");
        return;
    }
    if (gone && c->nccl / 100 >= gone / 100)
        im_env_say(c, c->nccl_known ? IM_ENV_WARN : IM_ENV_NOTE, "version-gone", x, "NCCL reads it no more from %s on", im_env_version_text(gone, a));
    else if (since > IM_ENV_NCCL_OLDEST && c->nccl_known && c->nccl / 100 < since / 100) /* what the oldest has may be older */
        im_env_say(c, IM_ENV_WARN, "version-new", x, "it came in %s: NCCL %s does not know it, and says nothing", im_env_version_text(since, a),
                   im_env_version_text(c->nccl, b));
}

/* ---- types --------------------------------------------------------------------------------------------------- */

static bool is_word(const char *value, const char *const *of, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcasecmp(value, of[i]))
            return true;
    return false;
}

static const char *reads(im_env_case *c, im_env_item *x, int64_t value)
{
    x->reads = im_arena_printf(c->set->arena, "%lld", (long long)value);
    return x->reads ? x->reads : "";
}

/* An integer of NCCL. False: what is used is the default. */
static bool check_int(im_env_case *c, im_env_item *x, const im_env_var *v, int64_t *out)
{
    static const char *const yes[] = {"true", "yes", "on", "y", "enable", "enabled"}, *const no[] = {"false", "no",      "off",
                                                                                                     "n",     "disable", "disabled"};
    im_env_number n = im_env_nccl_int(x->value);
    const im_env_step *s = im_env_at(x->name, c->nccl);
    *out = n.value;
    if (n.overflow) {
        if (s)
            *out = s->number;
        im_env_say(c, IM_ENV_FAIL, "int-overflow", x, "more than 64 bits: NCCL takes its default%s%s", s ? " " : "", s ? s->text : "");
        x->reads = s ? s->text : NULL;
        return false;
    }
    if (!n.digits) {
        bool means_yes = is_word(x->value, yes, IM_COUNT_OF(yes)), means_no = is_word(x->value, no, IM_COUNT_OF(no));
        im_env_finding *f = im_env_say(c, means_no ? IM_ENV_WARN : IM_ENV_FAIL, "int-word", x, "no number: NCCL reads 0%s",
                                       means_yes  ? ", the opposite of what is meant"
                                       : means_no ? ", which is what is meant here"
                                                  : "");
        if (means_yes || means_no)
            im_env_fix(c, f, "%s=%d", x->name, means_yes);
        reads(c, x, 0);
        return true;
    }
    size_t k = strlen(n.trailing);
    bool blanks = k && strspn(n.trailing, " \t\r") == k;
    if (k && !blanks) {
        static const char suffix[] = "kKmMgG";
        const char *unit = strchr(suffix, n.trailing[0]);
        im_env_finding *f = im_env_say(c, IM_ENV_FAIL, "int-trailing", x, "NCCL reads %s and ignores \"%s\"%s", reads(c, x, n.value), n.trailing,
                                       unit ? ": it knows no suffixes" : "");
        if (unit && n.value > 0 && n.value < 1 << 20)
            im_env_fix(c, f, "%s=%lld", x->name, (long long)(n.value << (10 * ((unit - suffix) / 2 + 1))));
    }
    if (n.octal) {
        char *end;
        long long decimal = strtoll(x->value, &end, 10);
        if (decimal != n.value || (k && !blanks)) {
            im_env_finding *f = im_env_say(c, IM_ENV_FAIL, "int-octal", x, "a leading 0 makes it octal: NCCL reads %s", reads(c, x, n.value));
            im_env_fix(c, f, "%s=%lld", x->name, decimal);
        }
    }
    if (n.hex)
        im_env_say(c, IM_ENV_NOTE, "int-hex", x, "hexadecimal: %s", reads(c, x, n.value));
    (void)v;
    return true;
}

static void check_range(im_env_case *c, im_env_item *x, const im_env_var *v, int64_t value)
{
    const im_env_step *s = im_env_at(x->name, c->nccl);
    bool is_default = s && s->is_number && s->number == value;
    if (!v || is_default)
        return;
    if (v->kind == IM_ENV_SWITCH && !v->min && !v->max) {
        if (value != 0 && value != 1)
            im_env_say(c, IM_ENV_WARN, "switch-number", x, "0 or 1 are meant; any number but 0 counts as on");
        return;
    }
    if ((v->min || v->max) && (value < v->min || value > v->max))
        im_env_say(c, IM_ENV_FAIL, "int-range", x, "%lld is outside of %lld to %lld", (long long)value,
                   (long long)(v->min < 0 ? s && s->is_number && s->number < 0 ? v->min : 0 : v->min), (long long)v->max);
    if (v->kind == IM_ENV_INT && v->choices) {
        char own[32];
        const char *one[16];
        size_t n = im_env_split(c->set->arena, v->choices, '|', one, IM_COUNT_OF(one));
        snprintf(own, sizeof own, "%lld", (long long)value);
        for (size_t i = 0; i < n; i++)
            if (!strcmp(one[i], own))
                return;
        im_env_say(c, IM_ENV_FAIL, "int-choice", x, "NCCL takes %s", v->choices);
    }
}

static void check_default(im_env_case *c, im_env_item *x, int64_t value)
{
    const im_env_step *s = im_env_at(x->name, c->nccl);
    im_str all = {0};
    if (!s || !s->is_number || s->number != value)
        return;
    im_env_describe_default(x->name, &all);
    if (c->nccl_known || !strstr(im_str_text(&all), "from"))
        im_env_say(c, IM_ENV_NOTE, "default", x, "that is the default%s: the line changes nothing", c->nccl_known ? " of this version" : "");
    else
        im_env_say(c, IM_ENV_NOTE, "default", x, "that is the default of recent versions (%s)", im_str_text(&all));
    im_str_free(&all);
}

/* One of words joined by |. */
static bool in_choices(const char *choices, const char *word, size_t n, bool caseless)
{
    for (const char *p = choices; *p;) {
        size_t k = strcspn(p, "|");
        if (k == n && !(caseless ? strncasecmp(p, word, n) : strncmp(p, word, n)))
            return true;
        p += k + (p[k] == '|');
    }
    return false;
}

static void check_choice(im_env_case *c, im_env_item *x, const im_env_var *v)
{
    bool caseless = v->flags & IM_ENV_CASELESS;
    if (in_choices(v->choices, x->value, strlen(x->value), caseless))
        return;
    const char *one[32];
    size_t n = im_env_split(c->set->arena, v->choices, '|', one, IM_COUNT_OF(one));
    const char *near = NULL;
    for (size_t i = 0; i < n && !near; i++) /* only the case is wrong */
        near = strcasecmp(one[i], x->value) ? NULL : one[i];
    if (!near)
        near = im_nearest_name(x->value, one, n);
    bool debug = !strcmp(x->name, "NCCL_DEBUG"), nccl = v->family == IM_ENV_NCCL;
    im_env_finding *f = im_env_say(c, IM_ENV_FAIL, "choice", x, "\"%s\" is none of %s: %s", x->value, v->choices,
                                   debug  ? "NCCL tells nothing at all"
                                   : nccl ? "NCCL takes its default without a word"
                                          : "it is refused or ignored");
    if (near)
        im_env_fix(c, f, "%s=%s", x->name, near);
}

static void check_list_choice(im_env_case *c, im_env_item *x, const im_env_var *v, const char *list, size_t len)
{
    const char *p = list, *end = list + len;
    char stop = strstr(v->choices, "DEFAULT|EFFICIENCY") ? '|' : ',';
    if ((v->flags & IM_ENV_CARET) && p < end && *p == '^')
        p++;
    while (p < end) {
        const char *comma = memchr(p, stop, (size_t)(end - p)), *to = comma ? comma : end;
        size_t n = (size_t)(to - p);
        if (n && !in_choices(v->choices, p, n, v->flags & IM_ENV_CASELESS)) {
            bool algo = !strcmp(x->name, "NCCL_ALGO") || !strcmp(x->name, "NCCL_PROTO");
            bool ends = algo && im_env_from(c, 22400) != 0;
            im_env_say(c, ends ? IM_ENV_FAIL : IM_ENV_WARN, "list-choice", x, "\"%.*s\" is none of %s%s", (int)n, p, v->choices,
                       !algo  ? ": it is ignored"
                       : ends ? ": from 2.24 on initialisation fails"
                              : ": it is ignored before 2.24");
        }
        p = to + (to < end);
    }
}

static void check_choices(im_env_case *c, im_env_item *x, const im_env_var *v)
{
    bool by_function = strchr(x->value, ':') && (!strcmp(x->name, "NCCL_ALGO") || !strcmp(x->name, "NCCL_PROTO"));
    if (!by_function) {
        check_list_choice(c, x, v, x->value, strlen(x->value));
        return;
    }
    if (im_env_from(c, 22400) == 0)
        im_env_say(c, IM_ENV_FAIL, "version-syntax", x, "function:list is read from 2.24 on");
    for (const char *p = x->value; *p;) {
        size_t n = strcspn(p, ";");
        const char *colon = memchr(p, ':', n), *from = colon ? colon + 1 : p;
        check_list_choice(c, x, v, from, n - (size_t)(from - p));
        p += n + (p[n] == ';');
    }
}

static void check_ucx_number(im_env_case *c, im_env_item *x, const im_env_var *v)
{
    char *end;
    if (v->choices && in_choices(v->choices, x->value, strlen(x->value), true))
        return;
    if (!strcasecmp(x->value, "inf"))
        return;
    long long n = strtoll(x->value, &end, 0);
    if (end == x->value || *end)
        im_env_say(c, IM_ENV_FAIL, "number", x, "\"%s\" is no number%s%s", x->value, v->choices ? " and not " : "", v->choices ? v->choices : "");
    else if ((v->min || v->max) && (n < v->min || n > v->max))
        im_env_say(c, IM_ENV_FAIL, "number-range", x, "%lld is outside of %lld to %lld", n, (long long)v->min, (long long)v->max);
}

static void check_ternary(im_env_case *c, im_env_item *x)
{
    static const char *const right[] = {"y", "n", "yes", "no", "try", "auto", "on", "off", "0", "1"};
    if (!is_word(x->value, right, IM_COUNT_OF(right)))
        im_env_say(c, IM_ENV_FAIL, "choice", x, "\"%s\" is none of y, n, try, auto", x->value);
}

static void check_size(im_env_case *c, im_env_item *x)
{
    char *end;
    static const char *const words[] = {"auto", "inf"};
    if (is_word(x->value, words, IM_COUNT_OF(words)))
        return;
    strtod(x->value, &end);
    if (end == x->value || (*end && (!strchr("kKmMgGtTbB", *end) || (end[1] && !strchr("bB", end[1])))))
        im_env_say(c, IM_ENV_FAIL, "size", x, "\"%s\" is no number of bytes: 8192, 16k, 4M", x->value);
}

/* ---- one variable ------------------------------------------------------------------------------------------------ */

static void run_rules(im_env_case *c, im_env_item *x, int64_t value)
{
    const im_env_rule *const list[] = {im_env_rules_ib, im_env_rules_net, im_env_rules_mpi};
    const size_t n[] = {im_env_rules_ib_count, im_env_rules_net_count, im_env_rules_mpi_count};
    for (size_t i = 0; i < IM_COUNT_OF(list); i++)
        for (size_t k = 0; k < n[i]; k++)
            if (!strcmp(list[i][k].name, x->name))
                list[i][k].run(c, x, value);
}

static void check_links(im_env_case *c, im_env_item *x, const im_env_var *v)
{
    if (!v || !c->machine || !c->nport)
        return;
    if ((v->flags & IM_ENV_ON_ROCE) && !c->neth && c->nib)
        im_env_evidence(c,
                        im_env_say(c, IM_ENV_NOTE, "no-effect-on-infiniband", x,
                                   "every active RDMA port here is InfiniBand, where this is not used: the line changes nothing"),
                        "%s/sys/class/infiniband/%s/ports/%d/link_layer: InfiniBand", strcmp(c->f->root, "/") ? c->f->root : "", c->port[0]->device,
                        c->port[0]->port);
    if ((v->flags & IM_ENV_ON_IB) && !c->nib && c->neth)
        im_env_say(c, IM_ENV_NOTE, "no-effect-on-roce", x,
                   "every active RDMA port here is Ethernet, where this is not used: the line changes nothing");
}

static void check_value(im_env_case *c, im_env_item *x, const im_env_var *v)
{
    const im_env_step *s = im_env_at(x->name, c->nccl);
    bool number = v ? v->kind == IM_ENV_INT || v->kind == IM_ENV_SWITCH : s && s->is_number;
    int64_t value = 0;
    if (number) {
        bool used = check_int(c, x, v, &value);
        if (used)
            check_range(c, x, v, value);
        if (used)
            check_default(c, x, value);
    } else if (v && v->kind == IM_ENV_CHOICE) {
        check_choice(c, x, v);
    } else if (v && v->kind == IM_ENV_CHOICES) {
        check_choices(c, x, v);
    } else if (v && v->kind == IM_ENV_NUMBER) {
        check_ucx_number(c, x, v);
    } else if (v && v->kind == IM_ENV_TERNARY) {
        check_ternary(c, x);
    } else if (v && v->kind == IM_ENV_SIZE) {
        check_size(c, x);
    }
    check_links(c, x, v);
    run_rules(c, x, value);
    if (v && (v->flags & IM_ENV_TUNES) && x->verdict < IM_ENV_WARN)
        im_env_say(c, IM_ENV_NOTE, "experiment", x,
                   "NCCL's manual lists it for experiments: what is tuned by itself is fixed, and stays fixed when versions and machines change");
}

static void check_used(im_env_case *c, im_env_item *x)
{
    const im_env_var *v = im_env_find(x->name);
    const im_env_history *h = im_env_find_history(x->name);
    if (!v && !h) {
        unknown_name(c, x);
        return;
    }
    check_versions(c, x, v);
    if (!x->exported) {
        im_env_finding *f = im_env_say(c, IM_ENV_FAIL, "not-exported", x, "assigned, but not exported: the program does not see it");
        im_env_fix(c, f, "export %s=%s", x->name, x->value ? x->value : "...");
    }
    if (x->how == IM_ENV_PASS)
        return;
    if (!x->value) {
        im_env_say(c, IM_ENV_UNKNOWN, "value-unknown", x, "its value comes from elsewhere: it is not judged");
        return;
    }
    if (!*x->value) {
        im_env_say(c, IM_ENV_NOTE, "empty", x, "empty: as if it were not set");
        return;
    }
    check_value(c, x, v);
}

static void check_overruled(im_env_case *c, im_env_item *x)
{
    const im_env_item *by = x->by;
    bool same = x->value && by->value && !strcmp(x->value, by->value);
    if (x->how == IM_ENV_PASS || same)
        return;
    const char *why = by->layer != x->layer    ? by->layer == IM_ENV_LAYER_PROCESS ? "the environment wins over configuration files"
                                                 : by->layer == IM_ENV_LAYER_USER  ? "the user's file wins over /etc/nccl.conf"
                                                                                   : "that file wins"
                      : by->how == IM_ENV_CONF ? "the first line of a file wins"
                                               : "the later one wins";
    im_str at = {0};
    im_str_append(&at, by->file);
    if (by->line)
        im_str_printf(&at, ":%d", by->line);
    im_env_say(c, IM_ENV_NOTE, "overruled", x, "not used: %s sets it to %s (%s)", im_str_text(&at), by->value ? by->value : "something else", why);
    im_str_free(&at);
}

static void note_machine(im_env_case *c)
{
    const im_env_facts *f = c->f;
    im_arena *a = c->set->arena;
    c->machine = f && f->root;
    c->port = IM_ARENA_NEW(a, const im_env_port *, f ? f->nport + 1 : 1);
    c->chosen = IM_ARENA_NEW(a, const im_env_port *, f ? f->nport + 1 : 1);
    if (!c->machine || !c->port || !c->chosen)
        return;
    const char *hca = im_env_text(c, "NCCL_IB_HCA");
    im_env_list l = {0};
    if (hca)
        im_env_nccl_list(hca, &l);
    for (size_t i = 0; i < f->nport; i++) {
        const im_env_port *p = &f->port[i];
        if (p->active == 0)
            continue;
        c->port[c->nport++] = p;
        c->nib += p->link == IM_ENV_LINK_IB;
        c->neth += p->link == IM_ENV_LINK_ETH;
        if (!hca || im_env_nccl_list_takes(&l, p->device, p->port))
            c->chosen[c->nchosen++] = p;
    }
    c->use = c->nchosen ? c->chosen : c->port;
    c->nuse = c->nchosen ? c->nchosen : c->nport;
    c->rdma_judged = f->nport > 0 || c->o.here;
    c->c2c = c->rdma_judged ? f->c2c : -1; /* a script for a cluster that is looked at on a laptop */
}

void im_env_lint(im_env_set *s, const im_env_facts *f, const im_env_lint_options *o)
{
    static const im_env_facts none = {0};
    im_env_case c = {.set = s, .f = f ? f : &none, .o = *o};
    c.nccl = o->nccl ? o->nccl : c.f->nccl ? c.f->nccl : IM_ENV_NCCL_NEWEST;
    c.nccl_known = o->nccl || c.f->nccl;
    if (!(c.o.watchdog_s > 0))
        c.o.watchdog_s = 600;
    c.c2c = -1;
    im_env_resolve(s);
    note_machine(&c);
    for (size_t i = 0; i < s->n && !s->failed; i++) {
        const im_env_item *by = s->item[i]->by;
        if (by)
            check_overruled(&c, s->item[i]);
        if (!by || (!by->value && by->how != IM_ENV_PASS && s->item[i]->value)) /* what wins may be for another command, or the same */
            check_used(&c, s->item[i]);
    }
    if (!s->failed) {
        im_env_rules_net_whole(&c);
        im_env_rules_mpi_whole(&c);
    }
}
