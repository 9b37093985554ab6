# man-text.awk: the text of manual pages, their roff markup removed.
#
#   zcat page.1.gz | awk -f tools/man-text.awk
#
# It knows the requests that manpages-tr uses. Headings, items and paragraphs become paragraphs of their own, with one empty line
# between them; what lies in an ignored block, a comment or a table's description is left out.

function plain(s)
{
    gsub(/\\f\(../, "", s)
    gsub(/\\f[A-Za-z]/, "", s)
    gsub(/\\s[-+]?[0-9]/, "", s)
    gsub(/\\[&|^\/,:%]/, "", s)
    gsub(/\\[0 ~]/, " ", s)
    gsub(/\\-/, "-", s)
    gsub(/\\\(bu/, "•", s)
    gsub(/\\\(ci/, "○", s)
    gsub(/\\\(aq/, "'", s)
    gsub(/\\\([lr]q/, "\"", s)
    gsub(/\\\(../, "", s)
    gsub(/\\e|\\\\/, "\\", s)
    return s
}

# The arguments of a request as one line: quotes hold an argument together and are not printed.
function arguments(s)
{
    sub(/^[.'][ \t]*[A-Za-z]+[ \t]*/, "", s)
    gsub(/"/, "", s)
    return plain(s)
}

function line(s)
{
    sub(/[ \t\r]+$/, "", s)
    if (s == "") {
        gap = 1
        return
    }
    if (gap && any)
        print ""
    gap = 0
    any = 1
    print s
}

/^\.ig/ { ignore = 1; next }
ignore  { if ($0 ~ /^\.\./) ignore = 0; next }
/^\.TS/ { table = 1; next }
/^\.TE/ { table = 0; gap = 1; next }
table   { next }
/^[.']\\"/ { next }
/^\.S[HS]/ { gap = 1; line(arguments($0)); gap = 1; next }
/^\.IP/ { gap = 1; s = arguments($0); sub(/ [0-9]+$/, "", s); if (s !~ /^[0-9]*$/) line(s); next }
/^\.(TP|PP|P|LP|sp|RS|RE|HP)/ { gap = 1; next }
/^\.(B|I|BR|BI|IR|RB|SM)[ \t]/ { line(arguments($0)); next }
/^[.']/ { next }
{ line(plain($0)) }
