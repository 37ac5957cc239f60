#!/usr/bin/env bash
# Publishes what scripts/release.sh has made, or checks it as the registries do.
#
#   scripts/publish.sh check FOLDER             nothing is uploaded: cargo's and npm's dry runs, twine's check, and our own of the packages for C#
#   scripts/publish.sh check-modules FOLDER     the same of the packages of scripts/gpu.sh
#   scripts/publish.sh crates | npm FOLDER | nuget FOLDER     uploads, for .github/workflows/release.yml, which has the accounts; the wheels and the
#                                               source archives are uploaded there
#
# Cargo finds the order of the crates, each of which has the version of the workspace. A platform's package is uploaded before the one that names it.
# twine is installed in target/checks.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
what=${1:-} folder=${2:-}
checks=$root/target/checks

shopt -s nullglob
npm_packages() { printf '%s\n' "$folder"/foredraft-*-{gnu,x64}-[0-9]*.tgz "$folder"/foredraft{-vulkan,}-[0-9]*.tgz; }

# twine's check of the packages for Python, and npm's dry run.
check_python_and_npm() {
    "$checks/bin/python" -c 'import twine' 2>/dev/null || { python3 -m venv "$checks" && "$checks/bin/pip" install --quiet --disable-pip-version-check twine; }
    mapfile -t python < <(find "$folder" -name '*.whl' -o -name 'foredraft*.tar.gz' ! -name '*-c-*' ! -name '*-vulkan-*')
    "$checks/bin/python" -m twine check --strict "${python[@]}"
    for package in $(npm_packages); do
        npm publish --dry-run --loglevel=error "$package"
    done
    echo "passed: npm publish --dry-run"
}

case $what in
check)
    # Without --no-verify llama.cpp would be compiled again.
    cargo publish --workspace --dry-run --no-verify --allow-dirty --quiet --target-dir "$root/target/publish"
    echo "passed: cargo publish --dry-run"
    check_python_and_npm
    python3 scripts/csharp_packages.py check "$folder"/*.nupkg "$folder"/com.foredraft.*.tgz "$folder"/*-godot.zip
    ;;
check-modules)
    check_python_and_npm
    scripts/check-packages.sh --with "$root/scripts/gpu_packages.py" check "$folder"/*
    ;;
crates) cargo publish --workspace ;;
npm)
    for package in $(npm_packages); do
        npm publish "$package"
    done
    ;;
nuget) dotnet nuget push "$folder"/*.nupkg --source https://api.nuget.org/v3/index.json --api-key "$NUGET_API_KEY" ;;
*)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
    ;;
esac
