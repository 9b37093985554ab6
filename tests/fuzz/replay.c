/* Without libFuzzer: gives a fuzz target each file of the corpus directories named on the command line, and each file cut
 * short at every length, and with every byte changed once. */
#include "base/base.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t inputs;

static void give(const char *data, size_t size)
{
    LLVMFuzzerTestOneInput((const uint8_t *)data, size);
    inputs++;
}

static int give_file(im_context *ctx, const char *path)
{
    char *data;
    size_t size;
    if (im_file_read(ctx, path, 1 << 24, &data, &size) != IM_OK) {
        fprintf(stderr, "%s\n", im_error_text(ctx));
        return 1;
    }
    give(data, size);
    size_t step = size / 500 + 1; /* large seeds: a part of the places */
    for (size_t i = 0; i < size; i += step) {
        char *cut = malloc(i + 1); /* a block of its own: reading past the end shows */
        memcpy(cut, data, i);
        give(cut, i);
        free(cut);
        char was = data[i];
        data[i] = (char)(was ^ (1 << (i % 8)));
        give(data, size);
        data[i] = was;
    }
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    im_context *ctx;
    int failed = im_context_create(&ctx) != IM_OK;
    for (int i = 1; i < argc && !failed; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            fprintf(stderr, "%s: no such directory\n", argv[i]);
            return 1;
        }
        for (struct dirent *e; !failed && (e = readdir(dir));) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            if (e->d_name[0] != '.')
                failed = give_file(ctx, path);
        }
        closedir(dir);
    }
    printf("%s %zu inputs\n", failed || !inputs ? "FAIL" : "ok", inputs);
    im_context_destroy(ctx);
    return failed || !inputs;
}
