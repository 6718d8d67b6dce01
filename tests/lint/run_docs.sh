#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_docs.sh: what the documentation names exists: pages, headings, tests, files of the sources.
# shellcheck disable=SC2086 # lists of files without blanks in their names
. "$(dirname "$0")/common.sh"
cd "$top" || exit 1

pages=$(find README.md CONTRIBUTING.md docs packaging tests bench tools patches -name '*.md')
folders="bench docs help ompi opal packaging patches quickstart tests tools README.md CONTRIBUTING.md"

# headings PAGE: the anchors of its headings, as GitHub makes them
headings() {
    sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed -e 's/[^a-z0-9 _-]//g' -e 's/ /-/g'
}

report "links lead to a file and a heading" "$(for page in $pages; do
    grep -oE '\]\([^)]+\)' "$page" | sed -e 's/^](//' -e 's/)$//' | grep -vE '^[a-z]+:' |
        while read -r link; do
            file=${link%%#*}
            target=$(dirname "$page")/$file
            [ -n "$file" ] || target=$page
            if [ ! -e "$target" ]; then
                echo "$page: no file $link"
            elif [ "$link" != "$file" ] && ! headings "$target" | grep -qxF -e "${link#*#}"; then
                echo "$page: no heading $link"
            fi
        done
done)"

report "pages that are named exist" "$(grep -rnoE 'docs/[A-Za-z0-9_/-]+\.(md|svg|csv)' $folders --include='*' |
    while IFS=: read -r file line page; do [ -e "$page" ] || echo "$file:$line: $page"; done)"

report "README leads to every page" "$(for page in docs/*.md; do
    grep -qF "($page)" README.md || echo "$page"
done)"

report "tests that are named exist" "$(grep -onE '(run_[a-z_0-9]+\.sh|[a-z_0-9]+_test\b)' $pages |
    while IFS=: read -r file line test; do
        find tests \( -name "$test" -o -name "$test.cc" \) | grep -q . || echo "$file:$line: $test"
    done)"

# Of every BTL there are, besides, exclusivity and eager_limit.
report "parameters and counters that are named exist" "$(grep -onE '\bbtl_gpusm_[a-z_0-9]+' $pages |
    while IFS=: read -r file line name; do
        short=${name#btl_gpusm_}
        grep -rqE "\"$short\"|X\($short," opal --include='*.cc' --include='*.h' ||
            find opal -name "$name*" | grep -q . || echo "$file:$line: $name"
    done | grep -vE 'btl_gpusm_(exclusivity|eager_limit)$')"

# Between backquotes, with a folder; what ends in no suffix is a header and its source.
report "source files that are named exist" "$(grep -onE '`(base|shm|gpu|ipc|protocol)/[a-z_0-9]+(\.[a-z]+)?`' $pages |
    tr -d '`' | while IFS=: read -r file line source; do
        find opal -path "*/$source" -o -path "*/$source.h" | grep -q . || echo "$file:$line: $source"
    done)"

# The version of a manual is that of configure.ac.
version=$(sed -n 's/^AC_INIT(\[gpusm\], \[\(.*\)\])/\1/p' configure.ac)
report "manuals are of this version" "$(grep -LE "^\.TH GPUSM_[A-Z]+ 1 .*\"gpusm $version\"" docs/man/*.1)"
if command -v man >/dev/null 2>&1; then
    report "manuals are formatted without a warning" "$(for manual in docs/man/*.1; do
        LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 "$manual" 2>&1 >/dev/null
    done)"
else
    skip "manuals are formatted without a warning" "no man"
fi
if command -v mandoc >/dev/null 2>&1; then
    report "manuals are right for mandoc, too" "$(mandoc -T lint -W warning docs/man/*.1 2>&1)"
else
    skip "manuals are right for mandoc, too" "no mandoc"
fi

if command -v python3 >/dev/null 2>&1; then
    report "pictures are what bench/plot makes of their tables" "$(for table in docs/figures/*.csv; do
        python3 bench/plot -o "$work/picture.svg" "$table" 2>&1
        cmp "$work/picture.svg" "${table%.csv}.svg" 2>&1
    done)"
else
    skip "pictures are what bench/plot makes of their tables" "no python3"
fi
exit $failed
