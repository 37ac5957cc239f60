#!/usr/bin/env bash
# Tests the bindings for C#: compiles them and their tests with Mono's compiler, runs them under Mono, makes the packages and checks them,
# compiles the samples for Unity and Godot from those, with what stands in for the editors, and runs them. Where there is a dotnet, a
# project that refers to the NuGet package runs the tests, too.
#
#   scripts/test-csharp.sh [parts of tests' names]      FOREDRAFT_LIB: the library, else target/release's
#                                                       FOREDRAFT_PACKAGES: a folder in which scripts/release.sh has made the packages, instead
#
# Without mcs and mono it is skipped; where CI runs (CI=1) that is a failure.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
library=$(realpath "${FOREDRAFT_LIB:-$root/target/release/libforedraft.so}")
export FOREDRAFT_MODELS=$root/models FOREDRAFT_HUB=$root/tests/hub FOREDRAFT_HEADER=$root/include/foredraft.h
compile=(mcs -langversion:7 -warnaserror)

if ! mcs --version >/dev/null 2>&1 || ! mono --version >/dev/null 2>&1; then
    echo "skipped: the bindings for C#: no mcs and mono here"
    [ -z "${CI:-}" ]
    exit
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
libraries=${LD_LIBRARY_PATH:-}
LD_LIBRARY_PATH=$(dirname "$library")${libraries:+:$libraries}
export LD_LIBRARY_PATH

echo "under $(mono --version | head -n 1):"
"${compile[@]}" -out:tests.exe "$root"/csharp/src/*.cs "$root"/csharp/tests/*.cs
timeout 1800 mono tests.exe "$@"
# The chat client for Microsoft.Extensions.AI, against the interface as it is documented, because Mono's compiler cannot get the package.
"${compile[@]}" -out:chat_client.exe "$root"/csharp/src/*.cs "$root"/csharp/tests/*.cs "$root"/csharp/tests/extensions_ai/*.cs "$root"/examples/adapters/*.cs
timeout 1800 mono chat_client.exe a_chat_client

# The packages, and that the checks find what is missing.
if [ -n "${FOREDRAFT_PACKAGES:-}" ]; then
    mkdir packages
    cp "$FOREDRAFT_PACKAGES"/{*.nupkg,com.foredraft.*.tgz,*-godot.zip} packages
else
    python3 "$root/scripts/csharp_packages.py" make packages "$library"
fi
python3 - "$root" <<'PROGRAM'
import pathlib, re, sys
sys.path.insert(0, sys.argv[1] + "/scripts")
import csharp_packages as packages

# Not every package must have these.
optional = re.compile(r"(package/)?(LICENSE|README|Samples~/)")
for path in pathlib.Path("packages").iterdir():
    files = packages.contents(path)
    for missing in files:
        damaged = {name: data for name, data in files.items() if name != missing}
        assert packages.problems(path.suffix, damaged) or optional.match(missing), f"{path.name} without {missing} passes"
PROGRAM

# Each sample, with the sources that its package carries.
expected=
for editor in Unity Godot; do
    mkdir "$editor"
    case $editor in
    Unity) tar -C Unity -xzf packages/*.tgz && sources=(Unity/package/Runtime/*.cs Unity/package/Samples~/*/*.cs) ;;
    Godot) (cd Godot && python3 -m zipfile -e ../packages/*.zip . && python3 -m zipfile -e storyteller/packages/*.nupkg nupkg)
        sources=(Godot/nupkg/contentFiles/cs/any/Foredraft/*.cs Godot/storyteller/*.cs) ;;
    esac
    "${compile[@]}" -out:"$editor.exe" "$root/csharp/tests/editors/$editor.cs" "${sources[@]}"
    shown=$(timeout 600 mono "$editor.exe")
    [[ $shown == "Once upon a time"?????????????????????????????????????????* ]] || { echo "$editor's sample shows: $shown"; exit 1; }
    echo "$editor's sample shows: $shown"
done
shown=$(timeout 600 mono Unity.exe picture)
[ "$shown" = "A red square is at the top." ] || { echo "Unity's sample sees: $shown"; exit 1; }
"${compile[@]}" -target:library -define:ENABLE_IL2CPP,UNITY_IOS -out:il2cpp.dll "$root"/csharp/src/*.cs

if ! dotnet --version >/dev/null 2>&1; then
    echo "skipped: the NuGet package: no dotnet here"
    exit
fi
export DOTNET_CLI_TELEMETRY_OPTOUT=1 DOTNET_NOLOGO=1 NUGET_PACKAGES=$folder/nuget
mkdir dotnet
cp "$root"/csharp/tests/*.cs "$root/csharp/tests/Tests.csproj" dotnet
cp "$root/csharp/godot/nuget.config" dotnet && cp -r packages dotnet
sdk=$(dotnet --version)
framework=net${sdk%%.*}.0
[ "${sdk%%.*}" != 3 ] || framework=netcoreapp3.1
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
dotnet build dotnet --nologo --verbosity quiet --output dotnet/built -p:TargetFramework="$framework" -p:ForedraftVersion="$version" >build.log || { cat build.log; exit 1; }
# The library of the package, not the one beside which this runs.
export LD_LIBRARY_PATH=$libraries
echo "under .NET's SDK $sdk:"
timeout 1800 dotnet dotnet/built/Tests.dll "$@"
