'use strict';
// The package that carries the library for a platform. The main package has all of them as optional dependencies; by `os`, `cpu` and
// `libc` npm installs the one that fits.

/** Whether this Linux has glibc (`gnu`) or another C library (`musl`); undefined elsewhere. */
function libc() {
  if (process.platform !== 'linux') return undefined;
  return process.report.getReport().header.glibcVersionRuntime ? 'gnu' : 'musl';
}

/** Its name here, or for another processor: `@foredraft/linux-x64-gnu`. */
const packageName = (arch = process.arch) => `@foredraft/${[process.platform, arch, libc()].filter(part => part).join('-')}`;

/** The name of the library's file here. */
const fileName = { darwin: 'libforedraft.dylib', win32: 'foredraft.dll' }[process.platform] ?? 'libforedraft.so';

module.exports = { fileName, libc, packageName };
