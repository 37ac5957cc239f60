#!/usr/bin/env python3
"""Makes the packages for C#, and checks what packages have.

    scripts/csharp_packages.py make FOLDER LIBRARY...
    scripts/csharp_packages.py check PACKAGE...

`make` writes into FOLDER, for the libraries of one or more platforms (libforedraft.so, with foredraft-engine beside it; foredraft.dll):

    Foredraft.VERSION.nupkg                  NuGet: the sources, compiled into the project that refers to it, and the libraries
    com.foredraft.engine-VERSION.tgz         Unity's Package Manager, "Add package from tarball"
    foredraft-VERSION-godot.zip              a Godot project that uses the NuGet package, which lies in it

A package is made twice with the same bytes from the same files. Neither dotnet nor an editor is needed; nothing but Python is.
"""
import hashlib
import io
import json
import re
import struct
import sys
import tarfile
import xml.etree.ElementTree as xml
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSHARP = ROOT / "csharp"
UNITY = "com.foredraft.engine"
#: The platforms: .NET's identifier, Unity's folder, editor's OS, target and CPU.
PLATFORMS = {
    "linux-x64": ("Linux/x86_64", "Linux", "Linux64", "x86_64"),
    "linux-arm64": ("Linux/arm64", "Linux", "EmbeddedLinux", "ARM64"),
    "win-x64": ("Windows/x86_64", "Windows", "Win64", "x86_64"),
}
#: When files were changed last, for the archives.
TIME = (2000, 1, 1, 0, 0, 0)


def version():
    return re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def platform(data):
    """The platform of a library's bytes; None if they are none of ours."""
    if data[:4] == b"\x7fELF":
        return {62: "linux-x64", 183: "linux-arm64"}.get(struct.unpack_from("<H", data, 18)[0])
    if data[:2] == b"MZ":
        machine = struct.unpack_from("<H", data, struct.unpack_from("<I", data, 60)[0] + 4)[0]
        return {0x8664: "win-x64"}.get(machine)
    return None


def library(name):
    """The file of a platform's library."""
    return "foredraft.dll" if name.startswith("win") else "libforedraft.so"


def natives(paths):
    """The files of each platform by name: the library, and the program of isolated engines."""
    found = {}
    for path in map(Path, paths):
        data = path.read_bytes()
        name = platform(data)
        if name is None:
            raise SystemExit(f"{path}: no library for {', '.join(PLATFORMS)}")
        if name in found:
            raise SystemExit(f"{path}: another library for {name}")
        found[name] = {library(name): data}
        if name.startswith("linux"):
            found[name]["foredraft-engine"] = path.with_name("foredraft-engine").read_bytes()
    return found


def sources():
    return {path.name: path.read_bytes() for path in sorted((CSHARP / "src").glob("*.cs"))}


def template(path):
    return path.read_bytes().replace(b"@VERSION@", version().encode())


# NuGet

CONTENT_TYPES = """<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
  <Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml" />
{}</Types>
"""
RELATIONSHIPS = """<?xml version="1.0" encoding="utf-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
  <Relationship Type="http://schemas.microsoft.com/packaging/2010/07/manifest" Target="/{}" Id="nuspec" />
</Relationships>
"""


def nuget(nuspec, files):
    """The bytes of a NuGet package with these files and this manifest."""
    files = {**files, nuspec.name: template(nuspec)}
    # Each extension has a type; what has none is named.
    extensions = sorted({Path(name).suffix[1:] for name in files} - {""})
    types = [f'  <Default Extension="{extension}" ContentType="application/octet" />\n' for extension in extensions]
    types += [f'  <Override PartName="/{name}" ContentType="application/octet" />\n' for name in sorted(files) if not Path(name).suffix]
    files["[Content_Types].xml"] = CONTENT_TYPES.format("".join(types)).encode()
    files["_rels/.rels"] = RELATIONSHIPS.format(nuspec.name).encode()
    return zipped(files)


def nupkg(libraries):
    files = {f"contentFiles/cs/any/Foredraft/{name}": data for name, data in sources().items()}
    for name, natives_of in libraries.items():
        files.update({f"runtimes/{name}/native/{file}": data for file, data in natives_of.items()})
    files["README.md"] = (CSHARP / "README.md").read_bytes()
    files["LICENSE"] = (ROOT / "LICENSE").read_bytes()
    return nuget(CSHARP / "nuget/Foredraft.nuspec", files)


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, which has permissions
            entry.external_attr = (0o100755 if is_program(data) else 0o100644) << 16
            archive.writestr(entry, data)
    return out.getvalue()


def is_program(data):
    return data[:4] == b"\x7fELF"


# Unity: every file of an immutable package has a .meta file, whose guid names it in scenes and so never changes.

META = "fileFormatVersion: 2\nguid: {}\n{}"
IMPORTERS = {
    ".cs": "MonoImporter:\n  externalObjects: {}\n  serializedVersion: 2\n  defaultReferences: []\n  executionOrder: 0\n  icon: {instanceID: 0}\n",
    ".asmdef": "AssemblyDefinitionImporter:\n  externalObjects: {}\n",
    ".md": "TextScriptImporter:\n  externalObjects: {}\n",
    "": "DefaultImporter:\n  externalObjects: {}\n",
}


def plugin(name):
    """The importer of a platform's library: for that platform's editor and player, and no other."""
    _, system, target, cpu = PLATFORMS[name]
    others = "".join(f"        Exclude {it}: {int(it not in ('Editor', target))}\n" for it in ("Editor", "EmbeddedLinux", "Linux64", "OSXUniversal", "Win", "Win64"))
    return (
        "PluginImporter:\n  externalObjects: {}\n  serializedVersion: 2\n  iconMap: {}\n  executionOrder: {}\n  defineConstraints: []\n"
        "  isPreloaded: 0\n  isOverridable: 0\n  isExplicitlyReferenced: 0\n  validateReferences: 1\n  platformData:\n"
        f"  - first:\n      : Any\n    second:\n      enabled: 0\n      settings:\n{others}"
        f"  - first:\n      Editor: Editor\n    second:\n      enabled: 1\n      settings:\n        CPU: {cpu}\n        DefaultValueInitialized: true\n        OS: {system}\n"
        f"  - first:\n      Standalone: {target}\n    second:\n      enabled: 1\n      settings:\n        CPU: {cpu}\n"
    )


def meta(path, importer):
    return META.format(hashlib.md5(f"{UNITY}/{path}".encode()).hexdigest(), importer).encode()


def unity(libraries):
    files = {str(path.relative_to(CSHARP / "unity")): path.read_bytes() for path in sorted((CSHARP / "unity").rglob("*")) if path.is_file()}
    package = json.loads(files["package.json"])
    files["package.json"] = json.dumps({"name": package.pop("name"), "version": version(), **package}, indent=2).encode() + b"\n"
    files["LICENSE.md"] = (ROOT / "LICENSE").read_bytes()
    files.update({f"Runtime/{name}": data for name, data in sources().items()})
    importers = {}
    for name, natives_of in libraries.items():
        for file, data in natives_of.items():
            path = f"Plugins/{PLATFORMS[name][0]}/{file}"
            files[path] = data
            if file != "foredraft-engine":
                importers[path] = plugin(name)
    metas = {}
    for path in files:
        if "~" in path:  # not imported
            continue
        metas[path + ".meta"] = meta(path, importers.get(path, IMPORTERS.get(Path(path).suffix, IMPORTERS[""])))
        for folder in list(Path(path).parents)[:-1]:
            metas[f"{folder}.meta"] = meta(folder, "folderAsset: yes\n" + IMPORTERS[""])
    return tarred({f"package/{path}": data for path, data in {**files, **metas}.items()})


def tarred(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=9) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if is_program(data) else 0o644
            archive.addfile(entry, io.BytesIO(data))
    packed = bytearray(out.getvalue())
    packed[4:8] = bytes(4)  # gzip's time
    return bytes(packed)


# Godot

def godot(package):
    files = {path.name: template(path) for path in sorted((CSHARP / "godot").iterdir())}
    files[f"packages/Foredraft.{version()}.nupkg"] = package
    return zipped({f"storyteller/{name}": data for name, data in files.items()})


def make(folder, paths):
    libraries = natives(paths)
    package = nupkg(libraries)
    folder.mkdir(parents=True, exist_ok=True)
    made = {f"Foredraft.{version()}.nupkg": package, f"{UNITY}-{version()}.tgz": unity(libraries), f"foredraft-{version()}-godot.zip": godot(package)}
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in made]


# Checks. Each returns what is wrong.

def contents(path):
    if path.suffix in (".nupkg", ".whl", ".zip"):
        with zipfile.ZipFile(path) as archive:
            return {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive.getmembers()}


def check_natives(files, folders):
    """Whether these folders have what belongs to a platform, for that platform."""
    wrong = []
    for name, folder in folders.items():
        wanted = {library(name)} | ({"foredraft-engine"} if name.startswith("linux") else set())
        wrong += [f"{folder}: no {file}" for file in sorted(wanted) if folder + file not in files]
        wrong += [f"{path}: not for {name}" for path, data in files.items()
                  if path.startswith(folder) and not path.endswith(".meta") and platform(data) != name]
    return wrong


def check_sources(files, folder):
    wanted = {f"{folder}{name}" for name in sources()}
    found = {name for name in files if name.startswith(folder) and name.endswith(".cs")}
    return [f"{name}: missing" for name in sorted(wanted - found)] + [f"{name}: not in csharp/src" for name in sorted(found - wanted)]


def check_nuget(files, nuspec):
    """Whether a NuGet package has a manifest, and parts as the format wants them."""
    space = "{http://schemas.microsoft.com/packaging/2013/05/nuspec.xsd}"
    metadata = xml.fromstring(files[nuspec]).find(f"{space}metadata")
    wrong = [f"{nuspec}: no {key}" for key in ("id", "version", "authors", "description", "license") if not metadata.findtext(f"{space}{key}")]
    if metadata.findtext(f"{space}version") != version():
        wrong.append(f"{nuspec}: the version is not {version()}")
    types = xml.fromstring(files["[Content_Types].xml"])
    extensions = {it.get("Extension") for it in types}
    parts = {it.get("PartName") for it in types}
    wrong += [f"{name}: no content type" for name in files if name != "[Content_Types].xml" and Path(name).suffix[1:] not in extensions
              and f"/{name}" not in parts and name != "_rels/.rels"]
    target = xml.fromstring(files["_rels/.rels"])[0].get("Target")
    wrong += [] if target[1:] in files else [f"_rels/.rels: {target} is not in the package"]
    carried = {name.split("/")[1] for name in files if name.startswith("runtimes/")}
    return wrong + [f"runtimes/{name}: unknown" for name in carried - PLATFORMS.keys()] + ([] if carried else ["no library"])


def check_nupkg(files):
    carried = {name.split("/")[1] for name in files if name.startswith("runtimes/")} & PLATFORMS.keys()
    return (check_nuget(files, "Foredraft.nuspec") + check_sources(files, "contentFiles/cs/any/Foredraft/")
            + check_natives(files, {name: f"runtimes/{name}/native/" for name in carried}))


def check_unity(files):
    wrong = [f"{name}: not in package/" for name in files if not name.startswith("package/")]
    files = {name.removeprefix("package/"): data for name, data in files.items()}
    package = json.loads(files["package.json"])
    if package.get("version") != version() or package.get("name") != UNITY:
        wrong.append(f"package.json: expected {UNITY} {version()}")
    wrong += [f"package.json: the sample {it['path']} has no files" for it in package["samples"] if not any(name.startswith(it["path"] + "/") for name in files)]
    assembly = json.loads(files["Runtime/Foredraft.asmdef"])
    wrong += [] if assembly.get("name") == "Foredraft" and not assembly.get("references") else ["Foredraft.asmdef: expected no references"]
    imported = {name for name in files if "~" not in name and not name.endswith(".meta")}
    imported |= {str(folder) for name in imported for folder in list(Path(name).parents)[:-1]}
    wrong += [f"{name}: no .meta file" for name in sorted(imported) if f"{name}.meta" not in files]
    metas = {name: data.decode() for name, data in files.items() if name.endswith(".meta")}
    wrong += [f"{name}: belongs to nothing" for name in metas if name.removesuffix(".meta") not in imported]
    guids = [re.search(r"^guid: ([0-9a-f]{32})$", text, re.M) for text in metas.values()]
    if None in guids or len({it[1] for it in guids if it}) != len(metas):
        wrong.append("the guids of .meta files: expected another for each")
    folders = {name: f"Plugins/{folder}/" for name, (folder, *_) in PLATFORMS.items() if any(path.startswith(f"Plugins/{folder}/") for path in files)}
    if not folders:
        wrong.append("no library")
    for name, folder in folders.items():
        _, system, target, cpu = PLATFORMS[name]
        text = metas.get(f"{folder}{library(name)}.meta", "")
        if f"OS: {system}\n" not in text or f"Standalone: {target}\n" not in text or f"CPU: {cpu}\n" not in text or f"Exclude {target}: 0\n" not in text:
            wrong.append(f"{folder}{library(name)}.meta: not for {name}")
    return wrong + check_sources(files, "Runtime/") + check_natives(files, folders)


def check_godot(files):
    files = {name.removeprefix("storyteller/"): data for name, data in files.items()}
    project, text = xml.fromstring(files["Storyteller.csproj"]), files["project.godot"].decode()
    wrong = [] if project.get("Sdk", "").startswith("Godot.NET.Sdk/4.") else ["Storyteller.csproj: expected Godot.NET.Sdk/4"]
    references = {(it.get("Include"), it.get("Version")) for it in project.iter("PackageReference")}
    if references != {("Foredraft", version())}:
        wrong.append(f"Storyteller.csproj: expected Foredraft {version()}, got {references}")
    folder = xml.fromstring(files["nuget.config"]).find(".//add").get("value")
    package = f"{folder}/Foredraft.{version()}.nupkg"
    if package not in files:
        wrong.append(f"nuget.config: {package} is not in the project")
    else:
        with zipfile.ZipFile(io.BytesIO(files[package])) as archive:
            wrong += check_nupkg({entry.filename: archive.read(entry) for entry in archive.infolist()})
    scene = re.search(r'^run/main_scene="res://(.*)"', text, re.M)[1]
    assembly = re.search(r'^project/assembly_name="(.*)"', text, re.M)[1]
    scripts = re.findall(r'path="res://([^"]*)"', files.get(scene, b"").decode())
    wrong += [] if f"{assembly}.csproj" in files else [f"project.godot: no {assembly}.csproj"]
    wrong += [f"{scene}: {script} is not in the project" for script in scripts if script not in files] + ([] if scripts else [f"{scene}: no script"])
    # Godot finds a script's class by the file's name.
    wrong += [f"{script}: no class of this name" for script in scripts if script in files and f"partial class {Path(script).stem} " not in files[script].decode()]
    return wrong


def problems(kind, files):
    """The faults of the files of a package whose name ends in `kind`."""
    try:
        return {".nupkg": check_nupkg, ".zip": check_godot, ".tgz": check_unity}[kind](files)
    except (KeyError, xml.ParseError, json.JSONDecodeError) as error:
        return [f"{type(error).__name__} {error}"]


def report(path, files, wrong):
    """Prints what a package has and what is wrong with it. Returns whether nothing is."""
    print(f"{path.name}: {len(files)} files, {path.stat().st_size} bytes")
    for problem in wrong:
        print(f"{path.name}: {problem}", file=sys.stderr)
    return not wrong


def check(path):
    files = contents(path)
    return report(path, files, problems(path.suffix, files))


def run(documentation, make, check):
    """Runs the command of the program's arguments: `make FOLDER FILE...` or `check PACKAGE...`. Returns the exit status."""
    command, *rest = sys.argv[1:] or [""]
    if command == "make" and len(rest) > 1:
        paths = make(Path(rest[0]), rest[1:])
    elif command == "check" and rest:
        paths = [Path(path) for path in rest]
    else:
        print(documentation.strip())
        return 0 if command == "--help" else 2
    return 0 if all([check(path) for path in paths]) else 1


if __name__ == "__main__":
    sys.exit(run(__doc__, make, check))
