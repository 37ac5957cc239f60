#!/usr/bin/env python3
"""Checks what packages carry, as auditwheel does for wheels: every ELF file in wheels, npm tarballs, archives, folders, or by itself.

    scripts/check_packages.py PACKAGE...

- What a file needs is in the package, or belongs to the C and C++ run-time libraries that every Linux has.
- No file searches a folder of the machine that built it (RPATH, RUNPATH): only $ORIGIN, the package's own folder.
- Beside a Linux library is `foredraft-engine`, the program of isolated engines.
- A package for Windows carries foredraft.dll for x86-64, and its tag or its os and cpu say so.
- A manylinux tag names at least the C library that the files need. An npm package that carries files has os, cpu and libc.

Prints what each package needs, and ends with 1 if something is wrong. It needs nothing but Python.
"""
import io
import json
import re
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

#: Libraries that every Linux with that C library has.
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-[\w-]+)\.so\.\d+")
#: The newest version of libstdc++ and of its ABI that distributions with a C library (its minor version) have, oldest first.
LIBSTDCXX = [(17, 19, 7), (24, 22, 10), (27, 24, 11), (28, 24, 11), (31, 28, 12), (34, 29, 13), (35, 30, 13), (38, 32, 13), (39, 33, 13), (41, 33, 15)]
MACHINES = {62: "x86_64", 183: "aarch64"}


class Elf:
    """The dynamic section of an ELF file: what it needs, where it searches, and which versions of symbols it takes."""

    def __init__(self, data):
        self.data = data
        is_64, is_little = data[4] == 2, data[5] == 1
        if not (is_64 and is_little):
            raise ValueError("expected a 64-bit little-endian ELF file")
        self.machine = MACHINES.get(struct.unpack_from("<H", data, 18)[0], "another")
        (table,) = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        self.segments = []
        dynamic = None
        for index in range(count):
            kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, table + index * size)
            if kind == 1:
                self.segments.append((address, offset, length))
            elif kind == 2:
                dynamic = (offset, length)
        entries = []
        if dynamic:
            for at in range(dynamic[0], dynamic[0] + dynamic[1], 16):
                tag, value = struct.unpack_from("<qQ", data, at)
                if tag == 0:
                    break
                entries.append((tag, value))
        values = dict(entries)
        self.strings = self.offset(values[5]) if 5 in values else 0
        self.needed = [self.text(value) for tag, value in entries if tag == 1]
        self.soname = next((self.text(value) for tag, value in entries if tag == 14), None)
        self.paths = [path for tag, value in entries if tag in (15, 29) for path in self.text(value).split(":") if path]
        self.versions = set(self.needed_versions(values.get(0x6FFFFFFE), values.get(0x6FFFFFFF, 0)))

    def offset(self, address):
        for start, offset, length in self.segments:
            if start <= address < start + length:
                return address - start + offset
        raise ValueError(f"no segment has the address {address:#x}")

    def text(self, at):
        start = self.strings + at
        return self.data[start:self.data.index(b"\0", start)].decode("utf-8", "replace")

    def needed_versions(self, table, count):
        at = self.offset(table) if table else 0
        for _ in range(count):
            _, names, _, first, following = struct.unpack_from("<HHIII", self.data, at)
            name_at = at + first
            for _ in range(names):
                _, _, _, name, next_name = struct.unpack_from("<IHHII", self.data, name_at)
                yield self.text(name)
                name_at += next_name
            at += following


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
    dlls = {name: data for name, data in files.items() if Path(name).name == "foredraft.dll" and data[:2] == b"MZ"}
    wrong = []
    carried = {Path(name).name for name in elves} | {Elf(data).soname for data in elves.values()}
    for name, data in elves.items():
        elf = Elf(data)
        wrong += [f"{name}: searches {folder}, a folder of the machine that built it" for folder in elf.paths
                  if not re.fullmatch(r"\$(ORIGIN|\{ORIGIN\})(/.*)?", folder)]
        wrong += [f"{name}: needs {other}, which is neither carried nor a system library" for other in elf.needed
                  if other not in carried and not SYSTEM.fullmatch(other)]
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
    elif path.suffix == ".whl":
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
