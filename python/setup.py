"""Builds a wheel that carries the library.

The library is the file that FOREDRAFT_LIB names, else the repository's target/release/libforedraft.so, which is built if it is
not there. It runs on every processor of the architecture, so the wheel is tagged for every Linux with the C library that it needs.
"""
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

REPOSITORY = Path(__file__).resolve().parent.parent
NAME = {"darwin": "libforedraft.dylib", "win32": "foredraft.dll"}.get(sys.platform, "libforedraft.so")


def version():
    manifest = (REPOSITORY / "Cargo.toml").read_text(encoding="utf-8")
    return re.search(r'^version = "([^"]+)"', manifest, re.MULTILINE).group(1)


def library():
    """The file that the package carries."""
    named = os.environ.get("FOREDRAFT_LIB")
    source = Path(named) if named else REPOSITORY / "target" / "release" / NAME
    if not named and not source.is_file():
        subprocess.run(["make", "-C", str(REPOSITORY), "build"], check=True)
    return source


def platform_tag(file):
    tag = re.sub(r"[-.]", "_", sysconfig.get_platform())
    if not tag.startswith("linux_"):
        return tag
    needed = {int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", file.read_bytes())}
    return tag.replace("linux_", f"manylinux_2_{max(needed)}_", 1)


class BuildPy(build_py):
    def run(self):
        # What an earlier build left, and the package has no more.
        shutil.rmtree(Path(self.build_lib, "foredraft"), ignore_errors=True)
        super().run()
        if getattr(self, "editable_mode", False):
            return  # the package then finds the library in target/release
        folder = Path(self.build_lib, "foredraft", "lib")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library(), folder / NAME)


class BdistWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", platform_tag(library())


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(version=version(), cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel}, distclass=BinaryDistribution)
