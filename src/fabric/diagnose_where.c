/* Time, host and rank of a line. */
#include "fabric/diagnose_where.h"
#include "fabric/diagnose_scan.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PREFIX = 400 }; /* bytes in which a line's time is looked for */

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

bool im_log_number(const char *s, size_t n, size_t *at, int64_t *out)
{
    size_t i = *at;
    int64_t v = 0;
    if (i >= n || !digit(s[i]))
        return false;
    for (; i < n && digit(s[i]); i++) {
        v = v * 10 + (s[i] - '0');
        if (v > (INT64_C(1) << 53))
            return false;
    }
    *at = i;
    *out = v;
    return true;
}

/* Exactly k digits. */
static bool digits(const char *s, size_t n, size_t at, size_t k, int *out)
{
    int v = 0;
    if (at + k > n)
        return false;
    for (size_t i = 0; i < k; i++) {
        if (!digit(s[at + i]))
            return false;
        v = v * 10 + (s[at + i] - '0');
    }
    *out = v;
    return true;
}

/* ---- time -------------------------------------------------------------------------------------------- */

static double seconds(int year, int month, int day, int hour, int minute, int second)
{
    struct tm t = {.tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day, .tm_hour = hour, .tm_min = minute, .tm_sec = second};
    return month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60 ? NAN : (double)timegm(&t);
}

/* HH:MM:SS and a fraction at *at. */
static bool clock_time(const char *s, size_t n, size_t *at, int hms[3], double *fraction)
{
    size_t i = *at;
    if (!digits(s, n, i, 2, &hms[0]) || i + 8 > n || s[i + 2] != ':' || !digits(s, n, i + 3, 2, &hms[1]) || s[i + 5] != ':' ||
        !digits(s, n, i + 6, 2, &hms[2]))
        return false;
    i += 8;
    *fraction = 0;
    if (i + 1 < n && (s[i] == '.' || s[i] == ',') && digit(s[i + 1]))
        for (double unit = 0.1; ++i < n && digit(s[i]); unit /= 10)
            *fraction += unit * (s[i] - '0');
    *at = i;
    return true;
}

/* Z, +02:00 or +0200 at `at`: seconds east of UTC. */
static double zone(const char *s, size_t n, size_t at)
{
    int h, m = 0;
    if (at >= n || (s[at] != '+' && s[at] != '-') || !digits(s, n, at + 1, 2, &h))
        return 0;
    if (!digits(s, n, at + 3 + (at + 3 < n && s[at + 3] == ':'), 2, &m) || h > 14 || m > 59)
        return 0;
    return (s[at] == '-' ? -1 : 1) * (h * 3600.0 + m * 60.0);
}

/* 2026-12-01T12:00:00.123+02:00, 2026/12/01 12:00:00 */
static double iso(const char *s, size_t n, size_t at)
{
    int y, mo, d, hms[3];
    double fraction;
    size_t t = at + 11;
    if (at + 19 > n || !digits(s, n, at, 4, &y) || (s[at + 4] != '-' && s[at + 4] != '/') || !digits(s, n, at + 5, 2, &mo) ||
        s[at + 7] != s[at + 4] || !digits(s, n, at + 8, 2, &d) || (s[at + 10] != 'T' && s[at + 10] != ' ' && s[at + 10] != '_') ||
        !clock_time(s, n, &t, hms, &fraction))
        return NAN;
    return y < 1971 || y > 2200 ? NAN : seconds(y, mo, d, hms[0], hms[1], hms[2]) + fraction - zone(s, n, t);
}

/* Dec  1 12:00:00, Dec 1 12:00:00 2026. Without a year: one is assumed, the same for all such lines. */
static double syslog_time(const char *s, size_t n, size_t at)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    int mo = 0, y = 2000, hms[3];
    int64_t d;
    double fraction;
    if (at + 15 > n)
        return NAN;
    while (mo < 12 && memcmp(s + at, months + 3 * (size_t)mo, 3) != 0)
        mo++;
    size_t i = at + 3;
    while (i < n && s[i] == ' ')
        i++;
    if (mo == 12 || i == at + 3 || !im_log_number(s, n, &i, &d) || i >= n || s[i] != ' ' || d > 31)
        return NAN;
    i++;
    if (!clock_time(s, n, &i, hms, &fraction))
        return NAN;
    if (i + 5 <= n && s[i] == ' ' && digits(s, n, i + 1, 4, &y) && (y < 1971 || y > 2200))
        y = 2000;
    return seconds(y, mo + 1, (int)d, hms[0], hms[1], hms[2]) + fraction;
}

/* [E1218 20:27:21.4 file.cpp:1], I20241209 23:39:43.5, E321 02:07:08: glog, with and without a year, the month with one digit or two. */
static double glog(const char *s, size_t n, size_t at)
{
    int hms[3], y = 2000;
    int64_t date;
    double fraction;
    size_t i = at + 1, begin = i;
    if (!strchr("EWIF", s[at]) || !im_log_number(s, n, &i, &date) || i - begin < 3 || i >= n || s[i] != ' ')
        return NAN;
    if (i - begin == 8) {
        y = (int)(date / 10000);
        date %= 10000;
    } else if (i - begin > 4) {
        return NAN;
    }
    i++;
    if (!clock_time(s, n, &i, hms, &fraction))
        return NAN;
    return seconds(y, (int)(date / 100), (int)(date % 100), hms[0], hms[1], hms[2]) + fraction;
}

/* 1796067784.277994: ten digits and a fraction (UCX, JSON). */
static double epoch(const char *s, size_t n, size_t at)
{
    int64_t v;
    size_t i = at;
    double fraction = 0;
    if (!im_log_number(s, n, &i, &v) || i - at != 10 || i >= n || s[i] != '.')
        return NAN;
    for (double unit = 0.1; ++i < n && digit(s[i]); unit /= 10)
        fraction += unit * (s[i] - '0');
    return (double)v + fraction;
}

static double any_time(const char *s, size_t n, size_t at)
{
    double t = digit(s[at]) ? iso(s, n, at) : NAN;
    if (isnan(t) && digit(s[at]))
        t = epoch(s, n, at);
    if (isnan(t) && s[at] >= 'A' && s[at] <= 'Z')
        t = syslog_time(s, n, at);
    if (isnan(t) && s[at] >= 'A' && s[at] <= 'Z')
        t = glog(s, n, at);
    return t;
}

/* A date with a year beats one without. */
static void read_time(const char *s, size_t n, im_log_where *out)
{
    size_t end = n < PREFIX ? n : PREFIX;
    for (size_t i = 0; i < end; i++) {
        if (i && isalnum((unsigned char)s[i - 1]) && s[i - 1] != 'T')
            continue;
        double t = any_time(s, n, i);
        if (isnan(t))
            continue;
        if (isnan(out->time) || (out->time < 978307200 && t >= 978307200)) /* before 2001: the assumed year */
            out->time = t;
        if (out->time >= 978307200)
            return;
    }
    size_t key = s[0] == '{' ? im_scan_find(s, n, 0, "\"time") : n; /* behind the message in Docker's lines */
    for (size_t i = key; i < n && i < key + 60; i++)
        if (digit(s[i]) && !isnan(out->time = any_time(s, n, i)))
            return;
}

static void read_uptime(const char *s, size_t n, im_log_where *out)
{
    for (size_t i = 0; i < n && i < PREFIX; i++) {
        int64_t v;
        size_t at = i + 1;
        if (s[i] != '[')
            continue;
        while (at < n && s[at] == ' ')
            at++;
        size_t begin = at;
        if (im_log_number(s, n, &at, &v) && at - begin < 10 && at + 7 < n && s[at] == '.' && s[at + 7] == ']') {
            out->uptime = (double)v;
            return;
        }
    }
}

/* ---- host and process ------------------------------------------------------------------------------------- */

static bool host_char(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '.' || c == '_';
}

static void set_host(im_log_where *out, const char *s, size_t begin, size_t end)
{
    size_t n = end - begin;
    if (n >= 1 && n < sizeof out->host) {
        memcpy(out->host, s + begin, n);
        out->host[n] = 0;
    }
}

/* host:pid:tid [dev], NCCL's; the last one before `at`. */
static bool nccl_host(const char *s, size_t at, im_log_where *out)
{
    size_t lowest = at > PREFIX ? at - PREFIX : 0;
    for (size_t i = at; i-- > lowest;) {
        if (s[i] != ':' || !i || !host_char(s[i - 1]))
            continue;
        size_t p = i + 1, begin = i;
        int64_t pid, dev;
        if (!im_log_number(s, at, &p, &pid) || p >= at || (s[p] != ':' && s[p] != ' ') || pid > INT32_MAX)
            continue;
        if (s[p] == ':' && (++p >= at || !im_log_number(s, at, &p, &dev) || p >= at))
            continue;
        if (s[p] != ' ')
            continue;
        p++;
        bool bracket = p < at && s[p] == '[';
        if (!bracket && !(p + 4 <= at && memcmp(s + p, "NCCL", 4) == 0))
            continue;
        while (begin > 0 && host_char(s[begin - 1]))
            begin--;
        if (begin == i || strspn(s + begin, "0123456789.") >= i - begin)
            continue; /* a number: the end of a time, or of an address */
        out->pid = (int)pid;
        set_host(out, s, begin, i);
        return true;
    }
    return false;
}

/* [vm2:505  :0] (UCX), [vm2:00505] (Open MPI), [vm2:505:0:505] */
static bool bracket_host(const char *s, size_t n, size_t at, im_log_where *out)
{
    for (size_t i = 0; i + 3 < n && i <= at && i < PREFIX; i++) {
        if (s[i] != '[' || !isalpha((unsigned char)s[i + 1]))
            continue;
        size_t p = i + 1;
        int64_t pid;
        while (p < n && host_char(s[p]))
            p++;
        size_t end = p++;
        if (end >= n || s[end] != ':' || !im_log_number(s, n, &p, &pid) || pid > INT32_MAX)
            continue;
        if (p < n && (s[p] == ']' || s[p] == ' ' || s[p] == ':')) {
            out->pid = (int)pid;
            set_host(out, s, i + 1, end);
            return true;
        }
    }
    return false;
}

/* "Dec  1 12:00:00 nodeA kernel: ", "2026-12-01T12:00:00+0000 nodeA kernel: " */
static void syslog_host(const char *s, size_t n, size_t at, im_log_where *out)
{
    static const char *const parts[] = {" kernel: ", " kernel[", " systemd-networkd[", " slurmd[", " systemd["};
    for (size_t k = 0; k < IM_COUNT_OF(parts); k++) {
        size_t i = im_scan_find(s, n < PREFIX ? n : PREFIX, 0, parts[k]), begin = i;
        if (i >= at || i >= n || i >= PREFIX)
            continue;
        while (begin > 0 && host_char(s[begin - 1]))
            begin--;
        if (begin < i && begin > 5)
            set_host(out, s, begin, i);
        return;
    }
}

/* ---- rank ----------------------------------------------------------------------------------------------- */

static bool word_rank(const char *s, size_t n, size_t limit, const char *what, im_log_where *out)
{
    size_t i = im_scan_find(s, n, 0, what);
    int64_t v;
    if (i >= n || i > limit)
        return false;
    i += strlen(what);
    if (!im_log_number(s, n, &i, &v) || v > 10000000 || i >= n || s[i] != ']')
        return false;
    out->rank = (int)v;
    return true;
}

static void read_rank(const char *s, size_t n, size_t at, im_log_where *out)
{
    int64_t v;
    size_t i = 0;
    if (word_rank(s, n, n, "[rank", out) || word_rank(s, n, n, "[Rank ", out))
        return;
    if (n > 4 && s[0] == '[' && s[1] == '1' && s[2] == ',') { /* mpirun --tag-output: [1,3]<stdout>: */
        i = 3;
        if (im_log_number(s, n, &i, &v) && i + 1 < n && s[i] == ']' && s[i + 1] == '<' && v < 10000000)
            out->rank = (int)v;
        return;
    }
    while (i < n && s[i] == ' ')
        i++;
    if (im_log_number(s, n, &i, &v) && i + 1 < n && s[i] == ':' && s[i + 1] == ' ' && v < 10000000 && at > i) /* srun --label */
        out->rank = (int)v;
}

void im_log_where_read(const char *line, size_t n, size_t at, im_log_where *out)
{
    *out = (im_log_where){.time = NAN, .uptime = NAN, .rank = -1, .pid = -1};
    if (!n)
        return;
    at = at > n ? n : at;
    read_time(line, n, out);
    read_uptime(line, n, out);
    if (!nccl_host(line, at, out) && !bracket_host(line, n, at, out))
        syslog_host(line, n, at, out);
    read_rank(line, n, at, out);
}

const char *im_log_time_text(double time, char *buf, size_t n)
{
    struct tm t;
    time_t whole = (time_t)floor(time);
    if (isnan(time) || !gmtime_r(&whole, &t)) {
        snprintf(buf, n, "?");
        return buf;
    }
    size_t k = strftime(buf, n, time < 978307200 ? "%m-%d %H:%M:%S" : "%Y-%m-%d %H:%M:%S", &t);
    double fraction = time - (double)whole;
    if (fraction >= 0.0005 && k + 5 < n)
        snprintf(buf + k, n - k, ".%03d", (int)(fraction * 1000 + 0.001));
    return buf;
}
