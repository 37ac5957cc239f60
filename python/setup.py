"""Builds a wheel that carries the library and the program `foredraft-engine`, which is beside it, and a source archive that can build that wheel.

The library is the file that FOREDRAFT_LIB names, else the repository's target/release/libforedraft.so, which `make build` brings up
to date with the sources. It runs on every processor of the architecture, so the wheel is tagged for every Linux with the C library that it needs:
scripts/check_packages.py reads that from the versions of its symbols. The source archive has what a build needs of the repository
in the folder `source`.
"""
import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
#: The repository, or what the source archive has of it.
REPOSITORY = next(folder for folder in (HERE / "source", HERE.parent) if (folder / "Cargo.toml").is_file())
#: The parts of the repository that a build needs.
SOURCES = [
    ".cargo", "Cargo.lock", "Cargo.toml", "LICENSE", "Makefile", "benches", "build", "build.rs", "cbindgen.toml", "clippy.toml", "crates", "examples/rust", "include",
    "packaging", "rustfmt.toml", "scripts", "src",
]
#: The library's name in the package. That of FOREDRAFT_LIB shows for which system a wheel is that is built on another one.
NAMES = {".so": "libforedraft.so", ".dylib": "libforedraft.dylib", ".dll": "foredraft.dll"}
NAME = NAMES.get(Path(os.environ.get("FOREDRAFT_LIB", "")).suffix) or NAMES[{"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")]


def version():
    manifest = (REPOSITORY / "Cargo.toml").read_text(encoding="utf-8")
    return re.search(r'^version = "([^"]+)"', manifest, re.MULTILINE).group(1)


@contextlib.contextmanager
def shown():
    """A file for what the person who waits reads: the terminal, because pip hides the output of builds, or stderr where there is none."""
    try:
        with open("/dev/tty", "w", encoding="utf-8") as terminal:
            yield terminal
    except OSError:
        yield sys.stderr


def make_library():
    """Brings the library up to date. Cargo shows its progress on a terminal."""
    with shown() as out:
        if not (REPOSITORY / "target" / "release" / NAME).is_file():
            print("\nforedraft: compiling llama.cpp and the library: about ten minutes on two cores", file=out, flush=True)
        subprocess.run(["make", "-C", str(REPOSITORY), "build"], check=True, stdout=out, stderr=out)


@functools.lru_cache(maxsize=None)
def library():
    """The file that the package carries."""
    named = os.environ.get("FOREDRAFT_LIB")
    source = Path(named) if named else REPOSITORY / "target" / "release" / NAME
    if not named:
        make_library()
    print(f"foredraft: the package carries {source}", file=sys.stderr)
    return source


def platform_tag(file):
    if file.suffix == ".dll":
        return "win_amd64"
    tag = re.sub(r"[-.]", "_", sysconfig.get_platform())
    if not tag.startswith("linux_"):
        return tag
    spec = importlib.util.spec_from_file_location("check_packages", REPOSITORY / "scripts" / "check_packages.py")
    check_packages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_packages)
    floor = check_packages.glibc_floor({file.name: file.read_bytes()})
    return tag.replace("linux_", f"manylinux_2_{floor}_", 1)


class BuildPy(build_py):
    def run(self):
        # Removes files of an earlier build that the package no longer has.
        shutil.rmtree(Path(self.build_lib, "foredraft"), ignore_errors=True)
        super().run()
        if getattr(self, "editable_mode", False):
            return  # the package then finds the library in target/release
        folder = Path(self.build_lib, "foredraft", "lib")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library(), folder / NAME)
        if NAME == NAMES[".so"]:  # the program of isolated engines
            shutil.copy2(library().with_name("foredraft-engine"), folder)


class Sdist(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for name in SOURCES:
            source, target = REPOSITORY / name, Path(base_dir, "source", name)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "target"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)


class BdistWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", platform_tag(library())


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(version=version(), cmdclass={"build_py": BuildPy, "sdist": Sdist, "bdist_wheel": BdistWheel}, distclass=BinaryDistribution)
