#!/usr/bin/env python3
"""Checks what packages carry, as auditwheel does for wheels: every ELF file in wheels, npm tarballs, archives, folders, or by itself.

    scripts/check-packages.sh PACKAGE...

- What a file needs is in the package, or belongs to the C and C++ run-time libraries that every Linux has.
- No file searches a folder of the machine that built it (RPATH, RUNPATH): only $ORIGIN, the package's own folder.
- Beside a Linux library is `foredraft-engine`, the program of isolated engines.
- A package for Windows carries foredraft.dll for x86-64, and its tag or its os and cpu say so.
- A module for GPUs by Vulkan may also need Vulkan's loader, which comes with a driver. It has no `foredraft-engine`.
- A manylinux tag names at least the C library that the files need. An npm package that carries files has os, cpu and libc.

Prints what each package needs, and ends with 1 if something is wrong. It needs pyelftools; scripts/check-packages.sh installs that first.
"""
import io
import json
import re
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

#: Libraries that every Linux with that C library has.
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-[\w-]+)\.so\.\d+")
#: What modules for GPUs may need, too.
LOADER = "libvulkan.so.1"
#: The newest version of libstdc++ and of its ABI that distributions with a C library (its minor version) have, oldest first.
LIBSTDCXX = [(17, 19, 7), (24, 22, 10), (27, 24, 11), (28, 24, 11), (31, 28, 12), (34, 29, 13), (35, 30, 13), (38, 32, 13), (39, 33, 13), (41, 33, 15)]
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


class Elf:
    """What an ELF file needs, where it searches, and which versions of symbols it takes."""

    def __init__(self, data):
        file = ELFFile(io.BytesIO(data))
        self.machine = MACHINES.get(file["e_machine"], "another")
        tags, versions = file.get_section_by_name(".dynamic"), file.get_section_by_name(".gnu.version_r")
        tags = list(tags.iter_tags()) if tags else []
        self.needed = [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]
        self.soname = next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), None)
        searched = [tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath for tag in tags if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")]
        self.paths = [path for paths in searched for path in paths.split(":") if path]
        self.versions = {version.name for _, needed in versions.iter_versions() for version in needed} if versions else set()


def numbers(versions, prefix):
    """The numbers after a prefix: (2, 34) of GLIBC_2.34."""
    found = (re.fullmatch(rf"{prefix}_(\d+(?:\.\d+)*)", version) for version in versions)
    return [tuple(int(part) for part in match[1].split(".")) for match in found if match]


def glibc_floor(files):
    """The minor version of the oldest glibc 2 with which these files (contents by name) run, libstdc++ of its distributions included."""
    versions = set().union(*(Elf(data).versions for data in files.values()))
    floor = max((number[1] for number in numbers(versions, "GLIBC")), default=17)
    cxx = max((number[2] for number in numbers(versions, "GLIBCXX") if len(number) > 2), default=0)
    abi = max((number[2] for number in numbers(versions, "CXXABI") if len(number) > 2), default=0)
    fits = [glibc for glibc, most_cxx, most_abi in LIBSTDCXX if glibc >= floor and cxx <= most_cxx and abi <= most_abi]
    older = [glibc for glibc, most_cxx, most_abi in LIBSTDCXX if glibc <= floor and cxx <= most_cxx and abi <= most_abi]
    if older:
        return floor
    if not fits:
        raise ValueError(f"GLIBCXX_3.4.{cxx} is newer than this script knows")
    return fits[0]


def contents(path):
    """The files of a package, by name."""
    if path.is_dir():
        return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file() and not file.is_symlink()}
    data = path.read_bytes()
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    if path.name.endswith((".tgz", ".tar.gz")):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return {member.name: archive.extractfile(member).read() for member in archive.getmembers() if member.isfile()}
    return {path.name: data}


def zipped(path):
    """True for a package, false for a file by itself."""
    return path.name.endswith((".whl", ".tgz", ".tar.gz"))


def check(path):
    """Returns the faults of a package, and prints what the package needs."""
    files = contents(path)
    elves = {name: data for name, data in files.items() if data[:4] == b"\x7fELF" and data[16] in (2, 3)}
    dlls = {name: data for name, data in files.items() if Path(name).name in ("foredraft.dll", "foredraft-vulkan.dll") and data[:2] == b"MZ"}
    wrong = []
    carried = {Path(name).name for name in elves} | {Elf(data).soname for data in elves.values()}
    for name, data in elves.items():
        elf = Elf(data)
        wrong += [f"{name}: searches {folder}, a folder of the machine that built it" for folder in elf.paths
                  if not re.fullmatch(r"\$(ORIGIN|\{ORIGIN\})(/.*)?", folder)]
        wrong += [f"{name}: needs {other}, which is neither carried nor a system library" for other in elf.needed
                  if other not in carried and not SYSTEM.fullmatch(other) and not (other == LOADER and Path(name).name == "libforedraft-vulkan.so")]
    folders = {Path(name).parent for name in elves if path.is_dir() or zipped(path) if Path(name).name.startswith("libforedraft.so")}
    wrong += [f"{folder}: has no foredraft-engine" for folder in folders if str(folder / "foredraft-engine") not in elves]
    package = next((json.loads(data) for name, data in files.items() if re.fullmatch(r"package/package\.json", name)), None)
    if package is not None and elves:
        wrong += [f"package.json: has no {key}" for key in ("os", "cpu", "libc") if not package.get(key)]
    if package is not None and not elves and "optionalDependencies" in package:
        odd = {name: version for name, version in package["optionalDependencies"].items() if version != package["version"]}
        wrong += [f"package.json: {name} has the version {version}, not {package['version']}" for name, version in odd.items()]
    line = f"{path.name}: {len(files)} files"
    if elves:
        floor = glibc_floor(elves)
        machines = {Elf(data).machine for data in elves.values()}
        line += f", {len(elves)} of them ELF for {', '.join(sorted(machines))}, glibc 2.{floor} or newer"
        tag = re.search(r"-(linux|manylinux_2_(\d+))_(\w+)\.whl$", path.name)
        if path.suffix == ".whl":
            if not tag or not tag[2]:
                wrong.append("its tag is none that package indexes take")
            elif int(tag[2]) < floor:
                wrong.append(f"its tag promises glibc 2.{tag[2]}, and it needs 2.{floor}")
            if tag and machines != {tag[3]}:
                wrong.append(f"its tag names {tag[3]}, and it carries {', '.join(sorted(machines))}")
    elif dlls:
        machines = {struct.unpack_from("<H", data, struct.unpack_from("<I", data, 60)[0] + 4)[0] for data in dlls.values()}
        line += f", {len(dlls)} of them DLLs"
        if machines != {0x8664}:
            wrong.append("its DLL is not for x86-64")
        if path.suffix == ".whl" and not path.name.endswith("-win_amd64.whl"):
            wrong.append("its tag does not name Windows")
        if package is not None and (package.get("os"), package.get("cpu")) != (["win32"], ["x64"]):
            wrong.append("package.json: expected os win32 and cpu x64")
    elif path.suffix == ".whl" and not path.name.startswith("foredraft_llama_cpp-"):  # which has code in Python alone
        wrong.append("it carries no library")
    print(line)
    return wrong


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        return 0 if "--help" in sys.argv else 2
    failed = False
    for path in map(Path, sys.argv[1:]):
        for problem in check(path):
            failed = True
            print(f"{path.name}: {problem}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
