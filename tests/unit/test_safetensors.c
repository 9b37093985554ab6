/* safetensors: what is written is read; each damaged or hostile header is refused with a message that says where and why; shards; and the
 * match of files and config. (PITFALLS B21, B43) */
#include "model/st.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static im_context *ctx;
static char dir[] = "/tmp/imece-st-XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) && im_context_create(&ctx) == IM_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    const im_status status = im_remove_tree(ctx, dir);
    im_context_destroy(ctx);
    return status == IM_OK ? 0 : -1;
}

/* Each test has a fresh directory. */
static int fresh(void **state)
{
    (void)state;
    im_error_clear(ctx);
    return im_remove_tree(ctx, dir) == IM_OK && mkdir(dir, 0700) == 0 ? 0 : -1;
}

static const char *path(const char *name)
{
    static char buf[4][128];
    static int at;
    char *p = buf[at++ % 4];
    snprintf(p, sizeof buf[0], "%s/%s", dir, name);
    return p;
}

static void put(const char *name, const void *data, size_t len)
{
    assert_int_equal(im_file_write_atomic(ctx, path(name), data, len), IM_OK);
}

/* A file image: the header's length (0: the true one, and the header is padded to 8), the header, n bytes of data 0, 1, 2 ... */
static size_t image(unsigned char *out, uint64_t length, const char *text, size_t n)
{
    char header[1024];
    snprintf(header, sizeof header, "%s", text);
    while (!length && strlen(header) % 8 != 0)
        strcat(header, " ");
    const size_t h = strlen(header);
    if (!length)
        length = h;
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(length >> (8 * i));
    memcpy(out + 8, header, h);
    for (size_t i = 0; i < n; i++)
        out[8 + h + i] = (unsigned char)i;
    return 8 + h + n;
}

static im_status parse(const unsigned char *data, size_t len, im_st_file *out, im_arena **a)
{
    im_error_clear(ctx);
    assert_int_equal(im_arena_create(ctx, a), IM_OK);
    return im_st_parse(ctx, "m.safetensors", data, len, 0, *a, out);
}

static void expect_refused(const unsigned char *data, size_t len, const char *message)
{
    im_st_file f;
    im_arena *a;
    /* exactly len bytes on the heap: a read past the end shows under the address sanitizer */
    unsigned char *copy = malloc(len + !len);
    assert_non_null(copy);
    memcpy(copy, data, len);
    const im_status got = parse(copy, len, &f, &a);
    if ((got != IM_ERR_FORMAT && got != IM_ERR_UNSUPPORTED) || !strstr(im_error_text(ctx), message) || !strstr(im_error_text(ctx), "m.safetensors"))
        fail_msg("gave %d \"%s\", expected \"%s\"", got, im_error_text(ctx), message);
    im_arena_destroy(a);
    free(copy);
}

#define T1(dtype, shape, a, b) "{\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #a "," #b "]}}"
#define TWO(a0, a1, b0, b1, rest)                                                                                                             \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" #a0 "," #a1 "]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" #b0 \
    "," #b1 "]}" rest "}"

static void test_bad_headers(void **state)
{
    (void)state;
    static const struct {
        uint64_t length; /* 0: the true one */
        const char *header;
        size_t data;
        const char *message;
    } cases[] = {
        {132095296, "{}", 0, "a header of 132095296 bytes: the format allows 100000000"},
        {UINT64_MAX, "{}", 0, "a header of 18446744073709551615 bytes"},
        {UINT64_MAX - 7, "{}", 0, "a header of 18446744073709551608 bytes"},
        {(uint64_t)1 << 63, "{}", 0, "a header of 9223372036854775808 bytes"},
        {1000, "{}", 0, "a header of 1000 bytes, but the file ends after 2: it is truncated"},
        {1, "{}", 0, "the header must be JSON that begins with {"},
        {0, " {}", 0, "begins with {"},
        {0, "[1]", 0, "begins with {"},
        {0, "{\"a\":", 0, "(header)"},
        {0, "{} x", 0, "(header)"},
        {0, "{\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
         "uplicate"},
        {0, "{\"w\":3}", 0, "tensor w: an object with dtype, shape and data_offsets"},
        {0, "{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor w: dtype must be a string"},
        {0, "{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor w: shape must be an array"},
        {0, "{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor w: data_offsets must be [begin, end]"},
        {0, T1("F32", "[-1]", 0, 4), 4, "shape[0] must be a whole number"},
        {0, T1("F32", "[1.5]", 0, 4), 4, "shape[0] must be a whole number"},
        {0, T1("F32", "[1,\"2\"]", 0, 4), 4, "shape[1] must be a whole number"},
        {0, T1("F32", "[18446744073709551617]", 0, 4), 4, "shape[0] must be a whole number"},
        {0, T1("F32", "[4294967296,4294967296]", 0, 0), 0, "the product of the shape is beyond 2^63"},
        {0, T1("F32", "[4611686018427387904]", 0, 0), 0, "needs"},
        {0, T1("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4), 4, "9 dimensions"},
        {0, T1("F32", "[2]", 0, 4), 4, "F32 [2] needs 8 bytes, but data_offsets [0, 4] hold 4"},
        {0, T1("BF16", "[2, 3]", 0, 24), 24, "BF16 [2, 3] needs 12 bytes"},
        {0, T1("F4", "[3]", 0, 2), 2, "F4 [3] needs 1.5 bytes"},
        {0, T1("F32", "[1]", 4, 0), 4, "data_offsets begin at 4, after their end 0"},
        {0, T1("F32", "[1]", -4, 0), 4, "data_offsets must be"},
        {0, T1("F32", "[1]", 0, 4.0), 4, "data_offsets must be"},
        {0, T1("F32", "[1]", 0, 9223372036854775808), 4, "data_offsets must be"},
        {0, T1("F32", "[1]", 9223372036854775804, 9223372036854775807), 4, "the file holds 4 bytes of data: it is truncated"},
        {0, T1("F32", "[2]", 0, 8), 7, "tensor w ends at byte 8 of the data, but the file holds 7 bytes"},
        {0, T1("F32", "[1]", 0, 4), 5, "1 bytes after the last tensor"},
        {0, T1("F32", "[1]", 4, 8), 8, "a hole of 4 bytes before tensor w"},
        {0, TWO(0, 4, 2, 6, ""), 6, "tensors a and b overlap: one ends at byte 4 of the data, the other begins at 2"},
        {0, TWO(0, 4, 0, 4, ""), 4, "overlap"},
        {0, TWO(4, 8, 0, 4, ""), 9, "1 bytes after the last tensor (from byte"},
        {0, TWO(0, 4, 6, 10, ""), 10, "a hole of 2 bytes before tensor b: it must begin at byte 4 of the data, where a ends"},
        {0, "{}", 3, "3 bytes after the last tensor"},
        {0, "{\"__metadata__\":[]}", 0, "__metadata__ must be an object of strings"},
        {0, "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__.a must be a string"},
        {0, "{\"a\\n\\u001bb\":3}", 0, "tensor a??b:"},
    };
    static unsigned char data[1024];
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++)
        expect_refused(data, image(data, cases[i].length, cases[i].header, cases[i].data), cases[i].message);
    for (size_t len = 0; len < 8; len++)
        expect_refused(data, len, "begins with the 8 bytes of its header's length");
    /* B43: the first 8 bytes of the reported file */
    static const unsigned char reported[16] = {0x40, 0x9D, 0xDF, 0x07};
    expect_refused(reported, sizeof reported, "a header of 132095296 bytes");
}

/* The header's length decides where the data lies. Writers before safetensors 0.3 did not pad it, and the format does not ask for it: such
 * files are read as others are, for each type and each remainder. */
static void test_unpadded(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        im_dtype dtype;
    } types[] = {
        {T1("F32", "[2]", 0, 8), IM_F32}, {T1("BF16", "[4]", 0, 8), IM_BF16}, {T1("F16", "[4]", 0, 8), IM_F16}, {T1("F64", "[1]", 0, 8), IM_F64}};
    static const unsigned char want[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    static unsigned char data[256];
    float x[4], y[4];
    for (size_t i = 0; i < IM_COUNT_OF(types); i++)
        for (size_t left = 0; left < 8; left++) {
            char header[128];
            snprintf(header, sizeof header, "%s", types[i].header);
            while (strlen(header) % 8 != left)
                strcat(header, " ");
            put("model.safetensors", data, image(data, strlen(header), header, 8));
            im_weights *w;
            unsigned char raw[8];
            assert_int_equal(im_weights_open(ctx, dir, &w), IM_OK);
            const im_st_tensor *t = im_weights_find(w, "w");
            const int64_t n = (int64_t)(8 / im_dtype_size(types[i].dtype));
            assert_non_null(t);
            assert_int_equal(t->offset % 8, left);
            assert_int_equal(im_weights_read(ctx, w, t, 0, n, types[i].dtype, raw), IM_OK);
            assert_memory_equal(raw, want, sizeof raw);
            assert_int_equal(im_weights_read(ctx, w, t, 0, n, IM_F32, left ? y : x), IM_OK);
            if (left)
                assert_memory_equal(x, y, (size_t)n * sizeof *x);
            im_weights_close(w);
        }
}

/* Every prefix of a good file, and every single changed byte of its header, is either refused or gives tensors inside the file. */
static void test_every_prefix_and_every_byte(void **state)
{
    (void)state;
    static unsigned char data[512];
    const size_t len = image(data, 0, TWO(0, 4, 4, 8, ",\"__metadata__\":{\"format\":\"pt\"}"), 8), header = len - 8;
    im_st_file f;
    im_arena *a;
    assert_int_equal(parse(data, len, &f, &a), IM_OK);
    im_arena_destroy(a);
    for (size_t cut = 0; cut < len; cut++)
        expect_refused(data, cut, "m.safetensors");
    for (size_t i = 0; i < header; i++) {
        const unsigned char keep = data[i];
        for (int v = 0; v < 256; v += 5) {
            data[i] = (unsigned char)v;
            f = (im_st_file){0};
            const im_status status = parse(data, len, &f, &a);
            for (size_t t = 0; t < f.n; t++)
                assert_true(f.tensor[t].offset <= len && f.tensor[t].nbytes <= len - f.tensor[t].offset);
            assert_true(status == IM_OK || *im_error_text(ctx));
            im_arena_destroy(a);
        }
        data[i] = keep;
    }
}

static void test_odd_but_right(void **state)
{
    (void)state;
    static unsigned char data[1024];
    static const struct {
        const char *header;
        size_t data, tensors;
    } cases[] = {
        {"{}", 0, 0},
        {"{}      ", 0, 0},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {T1("F32", "[]", 0, 4), 4, 1},
        {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0, 9223372036854775807, 9223372036854775807],\"data_offsets\":[0,0]}}", 0, 1},
        {TWO(4, 8, 0, 4, ""), 8, 2},
        {TWO(0, 4, 4, 8, ",\"c\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}"), 8, 3},
        {T1("F8_E4M3", "[3]", 0, 3), 3, 1},
        {T1("X9", "[3]", 0, 5), 5, 1},
    };
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        im_st_file f;
        im_arena *a;
        const char *h = cases[i].header;
        if (parse(data, image(data, 0, h, cases[i].data), &f, &a) != IM_OK)
            fail_msg("%s: %s", h, im_error_text(ctx));
        assert_int_equal(f.n, cases[i].tensors);
        im_arena_destroy(a);
    }
}

/* ---- writing ------------------------------------------------------------------ */

static void write_file(const char *name, im_st_plan *t, size_t n, const void *const *values)
{
    static const char *const metadata[] = {"format", "pt", "x\n", "\"y\"", NULL};
    im_str header = {0};
    uint64_t size;
    assert_int_equal(im_st_layout(ctx, t, n, metadata, &header, &size), IM_OK);
    unsigned char *all = calloc(1, size);
    assert_non_null(all);
    memcpy(all, im_str_text(&header), header.len);
    for (size_t i = 0; i < n; i++)
        memcpy(all + t[i].offset, values[i], t[i].nbytes);
    put(name, all, size);
    free(all);
    im_str_free(&header);
}

static void test_write_and_read(void **state)
{
    (void)state;
    const uint8_t u8[3] = {1, 2, 3};
    const float f32[6] = {0, -1, 2.5f, 1e-30f, INFINITY, 7};
    const uint16_t bf16[2] = {0x3f80, 0xc040};
    const uint16_t f16[8] = {0x3c00, 0x0001, 0x8001, 0x7bff, 0x7c00, 0xfc00, 0x0400, 0x8000};
    const double f64[1] = {0.1};
    const int64_t i64[1] = {-5};
    im_st_plan t[] = {
        {.name = "u", .dtype = IM_U8, .ndim = 1, .shape = {3}},
        {.name = "a.f32", .dtype = IM_F32, .ndim = 2, .shape = {2, 3}},
        {.name = "b\"q\"", .dtype = IM_BF16, .ndim = 1, .shape = {2}},
        {.name = "h", .dtype = IM_F16, .ndim = 1, .shape = {8}},
        {.name = "d", .dtype = IM_F64, .ndim = 0},
        {.name = "i", .dtype = IM_I64, .ndim = 1, .shape = {1}},
        {.name = "empty", .dtype = IM_F32, .ndim = 2, .shape = {0, 4}},
    };
    const void *const values[] = {u8, f32, bf16, f16, f64, i64, f32};
    write_file("model.safetensors", t, IM_COUNT_OF(t), values);
    im_weights *w;
    assert_int_equal(im_weights_open(ctx, dir, &w), IM_OK);
    assert_int_equal(im_weights_count(w), IM_COUNT_OF(t));
    assert_string_equal(im_weights_metadata(w, "format"), "pt");
    assert_string_equal(im_weights_metadata(w, "x\n"), "\"y\"");
    assert_null(im_weights_metadata(w, "none"));
    for (size_t i = 0; i < IM_COUNT_OF(t); i++) {
        const im_st_tensor *got = im_weights_find(w, t[i].name);
        assert_non_null(got);
        assert_int_equal(got->dtype, t[i].dtype);
        assert_int_equal(got->offset, t[i].offset);
        assert_int_equal(t[i].offset % im_dtype_size(t[i].dtype), 0);
        unsigned char raw[64];
        assert_int_equal(im_weights_read(ctx, w, got, 0, (int64_t)(t[i].nbytes / im_dtype_size(t[i].dtype)), t[i].dtype, raw), IM_OK);
        assert_memory_equal(raw, values[i], t[i].nbytes);
    }
    float x[8];
    assert_int_equal(im_weights_read(ctx, w, im_weights_find(w, "a.f32"), 1, 3, IM_F32, x), IM_OK);
    assert_memory_equal(x, f32 + 1, 3 * sizeof *x);
    assert_int_equal(im_weights_read(ctx, w, im_weights_find(w, "b\"q\""), 0, 2, IM_F32, x), IM_OK);
    assert_true(x[0] == 1 && x[1] == -3);
    assert_int_equal(im_weights_read(ctx, w, im_weights_find(w, "h"), 0, 8, IM_F32, x), IM_OK);
    assert_true(x[0] == 1 && x[1] == 0x1p-24f && x[2] == -0x1p-24f && x[3] == 65504 && x[4] == INFINITY && x[5] == -INFINITY && x[6] == 0x1p-14f);
    assert_true(x[7] == 0 && signbit(x[7]));
    assert_int_equal(im_weights_read(ctx, w, im_weights_find(w, "d"), 0, 1, IM_F32, x), IM_OK);
    assert_true(x[0] == 0.1f);
    /* out of range, and types that do not convert */
    assert_int_equal(im_weights_read(ctx, w, im_weights_find(w, "a.f32"), 4, 3, IM_F32, x), IM_ERR_ARG);
    assert_int_equal(im_weights_read(ctx, w, im_weights_find(w, "a.f32"), INT64_MAX, 1, IM_F32, x), IM_ERR_ARG);
    assert_int_equal(im_weights_read(ctx, w, im_weights_find(w, "a.f32"), -1, 1, IM_F32, x), IM_ERR_ARG);
    assert_int_equal(im_weights_read(ctx, w, im_weights_find(w, "u"), 0, 1, IM_F32, x), IM_ERR_UNSUPPORTED);
    im_weights_close(w);
}

static void test_layout_refuses(void **state)
{
    (void)state;
    im_str header = {0};
    uint64_t size = 7;
    im_st_plan same[] = {{.name = "w", .dtype = IM_F32, .ndim = 1, .shape = {1}}, {.name = "w", .dtype = IM_F32, .ndim = 1, .shape = {1}}};
    assert_int_equal(im_st_layout(ctx, same, 2, NULL, &header, &size), IM_ERR_ARG);
    im_st_plan huge[] = {{.name = "w", .dtype = IM_F32, .ndim = 2, .shape = {INT64_MAX, INT64_MAX}}};
    assert_int_equal(im_st_layout(ctx, huge, 1, NULL, &header, &size), IM_ERR_ARG);
    assert_int_equal(header.len, 0);
    assert_int_equal(size, 7);
    assert_int_equal(im_st_layout(ctx, huge, 0, NULL, &header, &size), IM_OK);
    assert_int_equal(size, 16);
    im_str_free(&header);
}

/* Headers of about 100 000 bytes, where one reader failed (B43): all lengths near it, padded to 8. */
static void test_header_lengths(void **state)
{
    (void)state;
    char *name = malloc(100100);
    assert_non_null(name);
    for (size_t n = 99900; n < 100020; n += 7) {
        memset(name, 'n', n);
        name[n] = '\0';
        im_st_plan t = {.name = name, .dtype = IM_F32, .ndim = 1, .shape = {2}};
        im_str header = {0};
        uint64_t size;
        assert_int_equal(im_st_layout(ctx, &t, 1, NULL, &header, &size), IM_OK);
        assert_int_equal(header.len % 8, 0);
        im_str_append_n(&header, "12345678", 8);
        assert_int_equal(header.len, size);
        im_st_file f;
        im_arena *a;
        assert_int_equal(parse((const unsigned char *)im_str_text(&header), header.len, &f, &a), IM_OK);
        assert_int_equal(f.tensor[0].offset, size - 8);
        im_arena_destroy(a);
        im_str_free(&header);
    }
    free(name);
}

/* ---- shards ---------------------------------------------------------------------- */

static void put_shard(const char *file, const char *tensor, float value)
{
    im_st_plan t = {.name = tensor, .dtype = IM_F32, .ndim = 1, .shape = {1}};
    write_file(file, &t, 1, (const void *const[]){&value});
}

static void expect_open_fails(const char *message)
{
    im_weights *w = NULL;
    im_error_clear(ctx);
    const im_status status = im_weights_open(ctx, dir, &w);
    if (status == IM_OK || !strstr(im_error_text(ctx), message))
        fail_msg("gave %d \"%s\", expected \"%s\"", status, im_error_text(ctx), message);
    assert_null(w);
}

static void put_index(const char *text)
{
    put("model.safetensors.index.json", text, strlen(text));
}

static void test_shards(void **state)
{
    (void)state;
    expect_open_fails("there is neither model.safetensors nor model.safetensors.index.json");
    put("pytorch_model.bin", "x", 1);
    expect_open_fails("safe_serialization=True");
    put_shard("one.safetensors", "a", 1);
    put_shard("two.safetensors", "b", 2);
    put_index("{\"metadata\":{\"total_size\":8},\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}");
    im_weights *w;
    assert_int_equal(im_weights_open(ctx, dir, &w), IM_OK);
    float x;
    assert_int_equal(im_weights_count(w), 2);
    assert_int_equal(im_weights_read(ctx, w, im_weights_find(w, "b"), 0, 1, IM_F32, &x), IM_OK);
    assert_true(x == 2);
    assert_non_null(strstr(im_weights_path(w, im_weights_find(w, "a")), "one.safetensors"));
    im_weights_close(w);
    put_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"three.safetensors\"}}");
    expect_open_fails("three.safetensors: the file is missing; ");
    put_index("{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"two.safetensors\"}}");
    expect_open_fails("tensor a should be in two.safetensors, but is not there");
    put_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"}}");
    expect_open_fails("tensor b should be in one.safetensors");
    put_index("{\"weight_map\":{\"a\":\"../one.safetensors\"}}");
    expect_open_fails("weight_map.a must be the name of a file in the same directory");
    put_index("{\"weight_map\":{\"a\":\"/etc/passwd\"}}");
    expect_open_fails("weight_map.a must be the name of a file");
    put_index("{\"weight_map\":{\"a\":3}}");
    expect_open_fails("weight_map.a must be the name of a file");
    put_index("{\"weight_map\":{}}");
    expect_open_fails("weight_map must be an object");
    put_index("{\"weight_map\":");
    expect_open_fails("model.safetensors.index.json");
    put_shard("two.safetensors", "a", 2);
    put_index("{\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}");
    expect_open_fails("tensor a is in ");
    put("two.safetensors", "12345678", 8);
    expect_open_fails("two.safetensors: ");
    put("model.safetensors", "", 0);
    expect_open_fails("0 bytes: a safetensors file begins");
}

/* ---- the match with a config --------------------------------------------------------- */

static im_model *tiny(const char *extra)
{
    char text[512];
    snprintf(text, sizeof text, "{\"model_type\":\"gpt2\",\"vocab_size\":5,\"n_positions\":4,\"n_embd\":4,\"n_layer\":1,\"n_head\":2%s}", extra);
    im_json *doc;
    im_model *m;
    assert_int_equal(im_json_parse(ctx, "config.json", text, strlen(text), &doc), IM_OK);
    assert_int_equal(im_model_parse(ctx, doc, &m), IM_OK);
    im_json_free(doc);
    return m;
}

enum { MAX_TENSORS = 24, ZEROS = 64 };
typedef struct files {
    im_st_plan t[MAX_TENSORS];
    const void *value[MAX_TENSORS];
    size_t n;
} files;
static const float zeros[ZEROS], ones[ZEROS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* All parameters of m, zeros, without the first `strip` characters of names that begin with "transformer.". */
static void all_params(files *f, const im_model *m, size_t strip)
{
    f->n = m->nparam;
    for (size_t i = 0; i < m->nparam; i++) {
        const im_param *p = &m->param[i];
        f->t[i] = (im_st_plan){.name = p->name + (strncmp(p->name, "transformer.", strip) == 0 ? strip : 0), .dtype = IM_F32, .ndim = p->ndim};
        memcpy(f->t[i].shape, p->shape, sizeof p->shape);
        f->value[i] = zeros;
    }
}

static void add(files *f, const char *name, int64_t rows, int64_t cols, const float *value)
{
    f->t[f->n] = (im_st_plan){.name = name, .dtype = IM_F32, .ndim = cols ? 2 : 1, .shape = {rows, cols}};
    f->value[f->n++] = value;
}

static im_status match(files *f, const im_model *m, const im_st_tensor **tensor_of, im_weights **w)
{
    im_error_clear(ctx);
    write_file("model.safetensors", f->t, f->n, f->value);
    assert_int_equal(im_weights_open(ctx, dir, w), IM_OK);
    return im_weights_match(ctx, *w, m, tensor_of);
}

static void expect_match(files *f, const im_model *m)
{
    const im_st_tensor *tensor_of[MAX_TENSORS];
    im_weights *w;
    if (match(f, m, tensor_of, &w) != IM_OK)
        fail_msg("%s", im_error_text(ctx));
    for (size_t i = 0; i < m->nparam; i++)
        assert_int_equal(tensor_of[i]->nbytes, (uint64_t)im_param_count(&m->param[i]) * 4);
    im_weights_close(w);
}

static void expect_no_match(files *f, const im_model *m, const char *message)
{
    const im_st_tensor *tensor_of[MAX_TENSORS] = {0};
    im_weights *w;
    const im_status status = match(f, m, tensor_of, &w);
    if (status == IM_OK || !strstr(im_error_text(ctx), message))
        fail_msg("gave %d \"%s\", expected \"%s\"", status, im_error_text(ctx), message);
    assert_null(tensor_of[0]);
    im_weights_close(w);
}

static void test_match(void **state)
{
    (void)state;
    im_model *m = tiny("");
    files f;
    all_params(&f, m, 0);
    expect_match(&f, m);
    all_params(&f, m, strlen("transformer."));
    expect_match(&f, m);
    /* buffers of old files */
    add(&f, "h.0.attn.bias", 4, 4, ones);
    add(&f, "h.0.attn.masked_bias", 1, 0, ones);
    expect_match(&f, m);
    all_params(&f, m, 0);
    add(&f, "transformer.h.0.attn.bias", 4, 4, ones);
    expect_match(&f, m);
    add(&f, "transformer.h.0.attn.rotten", 4, 4, ones);
    expect_no_match(&f, m, "1 tensor that config.json (gpt2) has no place for: transformer.h.0.attn.rotten");
    /* the same parameter under both names */
    all_params(&f, m, 0);
    add(&f, "ln_f.bias", 4, 0, ones);
    expect_no_match(&f, m, "no place for: ln_f.bias");
    /* missing */
    all_params(&f, m, 0);
    f.n--;
    expect_no_match(&f, m, "1 tensor that config.json (gpt2) needs is missing: transformer.ln_f.bias");
    f.n = 3;
    expect_no_match(&f, m, "tensors that config.json (gpt2) needs are missing: transformer.h.0.ln_1.bias, ");
    f.n = 0;
    expect_no_match(&f, m, "tensors that config.json (gpt2) needs are missing: transformer.wte.weight, ");
    /* shape and dtype */
    all_params(&f, m, 0);
    f.t[0].shape[0] = 6;
    expect_no_match(&f, m, "tensor transformer.wte.weight has shape [6, 4], but config.json makes it [5, 4]");
    all_params(&f, m, 0);
    f.t[0].shape[0] = 4;
    f.t[0].shape[1] = 5;
    expect_no_match(&f, m, "has shape [4, 5]");
    all_params(&f, m, 0);
    f.t[1].dtype = IM_I64;
    expect_no_match(&f, m, "tensor transformer.wpe.weight has dtype I64");
    im_model_close(m);
}

/* B21: one tensor when tied; both and equal: tied; both and different: refused, saying what to set. */
static void test_tied_head(void **state)
{
    (void)state;
    im_model *m = tiny(""), *untied = tiny(",\"tie_word_embeddings\":false");
    files f;
    all_params(&f, m, 0);
    add(&f, "lm_head.weight", 5, 4, zeros);
    expect_match(&f, m);
    f.value[f.n - 1] = ones;
    expect_no_match(&f, m, "set \"tie_word_embeddings\": false");
    f.t[f.n - 1].shape[0] = 4;
    expect_no_match(&f, m, "lm_head.weight differs from transformer.wte.weight");
    all_params(&f, m, 0);
    expect_no_match(&f, untied, "needs is missing: lm_head.weight (when the head is the token table, set \"tie_word_embeddings\": true)");
    add(&f, "lm_head.weight", 5, 4, ones);
    expect_match(&f, untied);
    im_model_close(m);
    im_model_close(untied);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_bad_headers, fresh),
        cmocka_unit_test_setup(test_unpadded, fresh),
        cmocka_unit_test_setup(test_every_prefix_and_every_byte, fresh),
        cmocka_unit_test_setup(test_odd_but_right, fresh),
        cmocka_unit_test_setup(test_write_and_read, fresh),
        cmocka_unit_test_setup(test_layout_refuses, fresh),
        cmocka_unit_test_setup(test_header_lengths, fresh),
        cmocka_unit_test_setup(test_shards, fresh),
        cmocka_unit_test_setup(test_match, fresh),
        cmocka_unit_test_setup(test_tied_head, fresh),
    };
    return cmocka_run_group_tests_name("safetensors", tests, setup, teardown);
}
