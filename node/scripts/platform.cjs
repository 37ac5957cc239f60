'use strict';
// Makes the package of this platform in native/: package.json, README, the library and, on Linux, the program of isolated engines, which is
// beside it. The library is the file that FOREDRAFT_LIB names, else the repository's target/release/libforedraft.so, which `make build` brings up to date with
// the sources. Prints the folder; on stderr it says which library that is.
// FOREDRAFT_ARCH is another processor that the library is for (`arm64`), FOREDRAFT_SYSTEM another system (`win32`).
// With --check it makes nothing: the versions must be those of Cargo.toml.
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const main = require('../package.json');
const { libc, nameOn, packageName } = require('../lib/platform.cjs');

const program = 'foredraft-engine';
const repository = path.resolve(__dirname, '../..');
const manifest = fs.readFileSync(path.join(repository, 'Cargo.toml'), 'utf8');
const version = /^version = "([^"]+)"/m.exec(manifest)[1];
for (const [name, given] of [['version', main.version], ...Object.entries({ ...main.optionalDependencies, ...main.peerDependencies })]) {
  if (given !== version) throw new Error(`node/package.json: ${name}: expected ${version}, which Cargo.toml has, got ${given}`);
}
if (!process.argv.includes('--check')) make();

function make() {
  const arch = process.env.FOREDRAFT_ARCH || process.arch;
  const system = process.env.FOREDRAFT_SYSTEM || process.platform;
  const name = packageName(arch, system);
  const fileName = nameOn(system);
  if (!(name in main.optionalDependencies)) throw new Error(`node/package.json: optionalDependencies: has no ${name}`);
  const given = process.env.FOREDRAFT_LIB;
  const source = given ? path.resolve(repository, given) : path.join(repository, 'target/release', fileName);
  if (!given) execFileSync('make', ['-C', repository, 'build'], { stdio: ['ignore', 2, 2] });
  console.error(`foredraft: the package carries ${source}`);

  const target = path.join(__dirname, '../native', name.split('/')[1]);
  fs.rmSync(target, { recursive: true, force: true });
  fs.mkdirSync(target, { recursive: true });
  fs.copyFileSync(source, path.join(target, fileName));
  if (system === 'linux') fs.copyFileSync(path.join(path.dirname(source), program), path.join(target, program));
  const { license, repository: origin, engines } = main;
  const about = {
    name, version, description: `The library of foredraft for ${name.split('/')[1]}`, license, repository: origin, engines,
    os: [system], cpu: [arch], ...(system === 'linux' && libc() && { libc: [libc() === 'gnu' ? 'glibc' : 'musl'] }),
    preferUnplugged: true, publishConfig: { access: 'public' },
  };
  fs.writeFileSync(path.join(target, 'package.json'), `${JSON.stringify(about, undefined, 2)}\n`);
  fs.writeFileSync(path.join(target, 'README.md'), `The library of [foredraft](https://www.npmjs.com/package/foredraft). That package installs this one where it fits.\n`);
  console.log(target);
}
