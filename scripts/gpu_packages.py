#!/usr/bin/env python3
"""Makes the packages of the module for GPUs by Vulkan, and checks them.

    scripts/gpu_packages.py make FOLDER MODULE...
    scripts/gpu_packages.py check PACKAGE...

`make` writes into FOLDER, for the modules of scripts/gpu.sh of one or more platforms (libforedraft-vulkan.so, foredraft-vulkan.dll):

    foredraft_vulkan-VERSION-py3-none-PLATFORM.whl     puts the module beside the library of the package foredraft
    foredraft-vulkan-PLATFORM-VERSION.tgz              npm: a platform's module
    foredraft-vulkan-VERSION.tgz                       npm: @foredraft/vulkan, which depends on the one that fits
    Foredraft.Vulkan.VERSION.nupkg                     NuGet: the modules of all the platforms that are given
    foredraft-VERSION-vulkan-PLATFORM.tar.gz           unpacks over the tree of the C archive

A package is made twice with the same bytes from the same files. Packages depend on this version of foredraft, because both share ggml's structures.
The tag of a wheel is that of the C library which the module needs (scripts/check_packages.py, which needs pyelftools; scripts/check-packages.sh gets it).
"""
import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import NamedTuple

import check_packages
import csharp_packages
from csharp_packages import ROOT, contents, platform, tarred, template, version, zipped

VULKAN = ROOT / "packaging/vulkan"
REPOSITORY = "https://github.com/foredraft/foredraft"


class Platform(NamedTuple):
    """The names of a platform: npm's os, cpu and libc, a C archive's, and the folder of a library there."""

    os: str
    cpu: str
    libc: str
    archive: str
    folder: str

    @property
    def npm(self):
        return f"@foredraft/vulkan-{self.os}-{self.cpu}" + ("-gnu" if self.libc else "")


#: By .NET's identifiers.
PLATFORMS = {
    "linux-x64": Platform("linux", "x64", "glibc", "linux-x86_64", "lib"),
    "linux-arm64": Platform("linux", "arm64", "glibc", "linux-aarch64", "lib"),
    "win-x64": Platform("win32", "x64", "", "windows-x86_64", "bin"),
}


def file_name(name):
    return csharp_packages.library(name).replace("foredraft", "foredraft-vulkan")


def modules(paths):
    found = {}
    for path in paths:
        data = Path(path).read_bytes()
        name = platform(data)
        if name is None or name in found:
            raise SystemExit(f"{path}: expected the module of {', '.join(PLATFORMS)}, one of each")
        found[name] = data
    return found


def readme(names):
    files = " or ".join(f"`{file_name(name)}`" for name in names)
    return template(VULKAN / "README.md").replace(b"@FILES@", files.encode())


def about(names):
    """The files of every package."""
    return {"README.md": readme(names), "LICENSE": (ROOT / "LICENSE").read_bytes()}


def wheel(name, data):
    """The name of a wheel and its files."""
    tag = "win_amd64"
    if name != "win-x64":
        tag = f"manylinux_2_{check_packages.glibc_floor({name: data})}_{PLATFORMS[name].archive.removeprefix('linux-')}"
    info = f"foredraft_vulkan-{version()}.dist-info"
    metadata = {
        "Metadata-Version": "2.1", "Name": "foredraft-vulkan", "Version": version(), "Summary": "GPUs by Vulkan for foredraft: llama.cpp's backend as a module",
        "License": "MIT", "Project-URL": f"Repository, {REPOSITORY}", "Requires-Python": ">=3.9", "Requires-Dist": f"foredraft=={version()}",
        "Description-Content-Type": "text/markdown",
    }
    header = "".join(f"{key}: {value}\n" for key, value in metadata.items())
    files = {
        f"foredraft/lib/{file_name(name)}": data,
        f"{info}/METADATA": header.encode() + b"\n" + readme([name]),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: foredraft\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n".encode(),
        f"{info}/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    digest = {path: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() for path, data in files.items()}
    record = [f"{path},sha256={digest[path]},{len(data)}\n" for path, data in files.items()] + [f"{info}/RECORD,,\n"]
    files[f"{info}/RECORD"] = "".join(record).encode()
    return f"foredraft_vulkan-{version()}-py3-none-{tag}.whl", files


def npm(name, description, **more):
    """The package.json of an npm package."""
    return json.dumps({
        "name": name, "version": version(), "description": description, "license": "MIT",
        "repository": {"type": "git", "url": f"git+{REPOSITORY}.git", "directory": "packaging/vulkan"}, "publishConfig": {"access": "public"}, **more,
    }, indent=2).encode() + b"\n"


def make(folder, paths):
    found = modules(paths)
    made = {}
    for name, data in found.items():
        names = PLATFORMS[name]
        file, files = wheel(name, data)
        made[file] = zipped(files)
        manifest = npm(names.npm, f"foredraft's module for GPUs by Vulkan, for {name}", os=[names.os], cpu=[names.cpu], preferUnplugged=True,
                       **({"libc": [names.libc]} if names.libc else {}))
        carrier = {**about([name]), "package.json": manifest, file_name(name): data}
        made[f"{names.npm[1:].replace('/', '-')}-{version()}.tgz"] = tarred({f"package/{path}": data for path, data in carrier.items()})
        tree = f"foredraft-{version()}-vulkan-{names.archive}"
        made[f"{tree}.tar.gz"] = tarred({f"{tree}/{path}": data for path, data in {
            f"share/doc/foredraft-vulkan/README.md": readme([name]), f"share/doc/foredraft-vulkan/LICENSE": (ROOT / "LICENSE").read_bytes(),
            f"{names.folder}/{file_name(name)}": data}.items()})
    carriers = {names.npm: version() for names in PLATFORMS.values() if names.cpu == "x64"}
    every = list(PLATFORMS)[::2]
    manifest = npm("@foredraft/vulkan", "GPUs by Vulkan for foredraft", optionalDependencies=carriers, peerDependencies={"foredraft": version()})
    made[f"foredraft-vulkan-{version()}.tgz"] = tarred({f"package/{path}": data for path, data in {**about(every), "package.json": manifest}.items()})
    natives = {f"runtimes/{name}/native/{file_name(name)}": data for name, data in found.items()}
    made[f"Foredraft.Vulkan.{version()}.nupkg"] = csharp_packages.nuget(VULKAN / "Foredraft.Vulkan.nuspec", {**natives, **about(found)})
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in made]


def check(path):
    """The faults of a package. check_packages.py looks at what the modules need and at the tags."""
    files = contents(path)
    wrong = [f"{name}: not for {PLATFORMS}" for name, data in files.items() if "foredraft-vulkan." in name and platform(data) not in PLATFORMS]
    carried = {name: platform(data) for name, data in files.items() if name.endswith((".so", ".dll"))}
    wrong += [f"{name}: expected {file_name(of)}" for name, of in carried.items() if Path(name).name != file_name(of)]
    readmes = [data.decode() for name, data in files.items() if name.endswith(("README.md", "METADATA"))]
    wrong += [] if readmes and not any("@" in text.replace("@foredraft/", "") for text in readmes) else ["a README that is not filled in"]
    if path.suffix == ".nupkg":
        wrong += csharp_packages.check_nuget(files, "Foredraft.Vulkan.nuspec")
    elif path.suffix == ".whl":
        record = next(data.decode() for name, data in files.items() if name.endswith("/RECORD"))
        wrong += [f"RECORD: no {name}" for name in files if f"{name}," not in record]
        wrong += [f"{name}: not beside the library" for name in carried if not name.startswith("foredraft/lib/")]
    elif path.suffix == ".tgz":
        manifest = json.loads(files["package/package.json"])
        wrong += [f"package.json: {key}: not {version()}" for key, of in manifest.get("optionalDependencies", {"": manifest["version"]}).items() if of != version()]
    return csharp_packages.report(path, files, wrong)


if __name__ == "__main__":
    sys.exit(csharp_packages.run(__doc__, make, check))
