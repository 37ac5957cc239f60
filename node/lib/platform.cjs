'use strict';
// The package that carries the library for a platform. The main package has all of them as optional dependencies; by `os`, `cpu` and
// `libc` npm installs the one that fits.

/** Whether this Linux has glibc (`gnu`) or another C library (`musl`); undefined elsewhere. */
function libc() {
  if (process.platform !== 'linux') return undefined;
  return process.report.getReport().header.glibcVersionRuntime ? 'gnu' : 'musl';
}

/** Its name here, or for another processor or system: `@foredraft/linux-x64-gnu`. */
const packageName = (arch = process.arch, system = process.platform) =>
  `@foredraft/${[system, arch, system === process.platform ? libc() : undefined].filter(part => part).join('-')}`;

/** The name of the library's file on a system. */
const nameOn = system => ({ darwin: 'libforedraft.dylib', win32: 'foredraft.dll' })[system] ?? 'libforedraft.so';
const fileName = nameOn(process.platform);

module.exports = { fileName, libc, nameOn, packageName };
