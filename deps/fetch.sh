#!/usr/bin/env bash
# Fetches the sources that Debian lacks (deps/sources.txt) from PyPI into build/_deps, which every preset
# uses. Version and SHA-256 are pinned; does nothing when the stamp matches; a failure leaves the old tree.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=build/_deps new=build/_deps.new.$$
want=$(cat deps/sources.txt deps/build-requirements.txt deps/xgrammar.patch deps/fetch.sh | sha256sum)
[ "$(cat $tree/stamp 2>/dev/null)" = "$want" ] && exit 0
echo "deps/fetch.sh: fetching $(sed -n 's/ .*//;/^[a-z]/p' deps/sources.txt | tr '\n' ' ')from PyPI"
trap 'rm -rf "$new"' EXIT
mkdir -p "$new/xgrammar"
python3 -m venv "$new/venv"
pip() { "$new/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
# pip computes a source package's metadata before it hands the file over: its build tools come first.
pip install --require-hashes --only-binary :all: -r deps/build-requirements.txt
pip download --require-hashes --no-deps --no-binary :all: --no-build-isolation -r deps/sources.txt -d "$new/files"
tar xzf "$new"/files/xgrammar-*.tar.gz -C "$new/xgrammar" --strip-components=1
# What the build does not read stays out: documentation, web pages, bindings.
rm -rf "$new/venv" "$new/files" "$new"/xgrammar/{assets,docs,examples,python,site,tests,web} \
    "$new"/xgrammar/3rdparty/{cpptrace,googletest} "$new"/xgrammar/cpp/tvm_ffi
# A fault of 0.2.9: a character class in a lookahead compares ASCII bytes with the low byte of its bounds, so
# that [c\uE000-\uFFFF] takes every one, and masks allow tokens that the matcher then refuses.
parser=$new/xgrammar/cpp/earley_parser.cc
sed -i -E 's/static_cast<uint8_t>\((sub_sequence\[i( \+ 1)?\])\)/\1/' "$parser"
[ "$(grep -cE '^ *(if \()?sub_sequence\[i\] <= ch|ch <= sub_sequence\[i \+ 1\]' "$parser")" = 4 ] || { echo "deps/fetch.sh: $parser is not the expected one" >&2; exit 1; }
# Ours on top: masks of wide states come from an automaton instead of the parser, the same bits much sooner.
patch --quiet --no-backup-if-mismatch --fuzz=0 -p1 -d "$new/xgrammar" < deps/xgrammar.patch
echo "$want" > "$new/stamp"
rm -rf "$tree"
mv "$new" "$tree"
