/* imece fabric check: what its files share. */
#ifndef IM_CLI_FABRIC_CHECK_H
#define IM_CLI_FABRIC_CHECK_H

#include "cli/cli_fabric.h"
#include "fabric/check.h"

typedef struct check_options {
    const char *root, *html, *hosts, *peer, *via, *remote;
    bool json, all, list, bandwidth;
    double expect, interval;
    int64_t storage_sl, seconds, size;
} check_options;

/* Where machines that are not this one are put; ends with im_check_places_end. */
typedef struct check_places {
    im_cli *cli;
    const char *scratch;
    int nscratch;
    size_t missing; /* hosts that gave no bundle */
} check_places;

void im_check_places_end(check_places *p);
/* The directory of a bundle: itself, or what is unpacked from an archive. */
im_status im_check_place_of(check_places *p, const char *bundle, const char **dir) IM_MUST_CHECK;
/* Names of a file (one a line; NULL: none), then peer (NULL: none). */
im_status im_check_hosts_read(im_cli *cli, const char *file, const char *peer, im_option_list *out) IM_MUST_CHECK;
/* A bundle from each host, by o->via and o->remote; dirs[i] NULL: the host gave none, which was told. */
im_status im_check_fetch(check_places *p, const check_options *o, const im_option_list *hosts, const char **dirs) IM_MUST_CHECK;
/* All pairs of hosts, in a part of their own. name[h]: how to reach it, NULL: this machine. again: reads host h once more. */
im_status im_check_bandwidth(im_cli *cli, const check_options *o, im_check_report *report, const im_check_host *host, const char *const *name,
                             size_t n, im_status (*again)(void *arg, size_t h, im_check_host *out), void *arg) IM_MUST_CHECK;

#endif
