# curve.awk: the curve of a run as SVG, from its metrics.jsonl.
#
#   awk -v bigram=3.92 -v trigram=3.18 -v per=3.0 -v title="..." -f tools/curve.awk RUN/metrics.jsonl > curve.svg
#
# per: bytes of text a token (1 for models of bytes). x: minutes of training (sum of step_s). y: bits per byte; the training loss is smoothed, evaluations are dots, the
# n-gram models (optional) are lines across.

function number(key,    s)
{
    if (!match($0, "\"" key "\": *-?[0-9.]+(e[-+]?[0-9]+)?"))
        return -1
    s = substr($0, RSTART, RLENGTH)
    sub(/^[^:]*: */, "", s)
    return s + 0
}

/"event"/ {
    b = number("bits_per_byte")
    if (b >= 0) {
        ne++
        et[ne] = time
        eb[ne] = b
    }
    next
}
/"loss"/ {
    l = number("loss")
    if (l < 0)
        next
    time += number("step_s") / 60
    bits = l / log(2) / (per ? per : 1)
    # a mean with a memory of 30 steps, shorter at the start so that it begins at the first loss
    n++
    k = n < 30 ? 1 / n : 1 / 30
    smooth += k * (bits - smooth)
    t[n] = time
    b30[n] = smooth
}

function px(minutes) { return left + (right - left) * minutes / xmax }
function py(bits) { return bottom - (bottom - top) * (bits - ymin) / (ymax - ymin) }
function across(bits, name)
{
    printf "<line class=\"gram\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", left, py(bits), right, py(bits)
    printf "<text class=\"note\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s %.2f</text>\n", right - 4, py(bits) - 5, name, bits
}

END {
    if (!n) {
        print "curve.awk: no steps" > "/dev/stderr"
        exit 1
    }
    left = 56; right = 700; top = 44; bottom = 320
    xmax = time
    ymin = int(b30[n])
    ymax = b30[1] > bigram ? b30[1] : bigram
    if (ne && eb[1] > ymax)
        ymax = eb[1]
    ymax = ymax < ymin + 1 ? ymin + 1 : ymax < 8 ? int(ymax) + 1 : 8
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 370\" font-family=\"system-ui, sans-serif\" font-size=\"13\">"
    print "<style>"
    print ".grid{stroke:#8884;stroke-width:1}.axis{fill:#666}.title{fill:#222;font-size:15px;font-weight:600}.note{fill:#b35900}"
    print ".gram{stroke:#d9822b;stroke-width:1.5;stroke-dasharray:6 4}.loss{fill:none;stroke:#2b6cb0;stroke-width:2}.eval{fill:#2f855a}.evalnote{fill:#2f855a;font-weight:600}"
    print "@media (prefers-color-scheme: dark){.axis{fill:#aaa}.title{fill:#eee}.note{fill:#f0a860}.loss{stroke:#63b3ed}.eval,.evalnote{fill:#68d391}}"
    print "</style>"
    printf "<text class=\"title\" x=\"%d\" y=\"22\">%s</text>\n", left, title
    for (y = ymin; y <= ymax; y++) {
        printf "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", left, py(y), right, py(y)
        printf "<text class=\"axis\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d</text>\n", left - 8, py(y) + 4, y
    }
    step = xmax > 12 ? 5 : xmax > 4 ? 1 : 0.5
    for (x = 0; x <= xmax + 1e-9; x += step)
        printf "<text class=\"axis\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", px(x), bottom + 20, x
    printf "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"end\">minutes</text>\n", right, bottom + 40
    printf "<text class=\"axis\" x=\"%d\" y=\"%d\">bits per byte</text>\n", left, top - 6
    if (bigram)
        across(bigram, "bigram")
    if (trigram)
        across(trigram, "trigram")
    every = n > 300 ? n / 300 : 1
    printf "<polyline class=\"loss\" points=\""
    for (i = 1; i <= n; i += every)
        printf "%.1f,%.1f ", px(t[int(i)]), py(b30[int(i)] > ymax ? ymax : b30[int(i)])
    print "\"/>"
    for (i = 1; i <= ne; i++)
        printf "<circle class=\"eval\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", px(et[i]), py(eb[i] > ymax ? ymax : eb[i])
    if (ne)
        printf "<text class=\"evalnote\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">validation %.2f</text>\n", px(et[ne]) - 8, py(eb[ne]) - 10, eb[ne]
    print "</svg>"
}
