'use strict';
// Puts the library into native/PLATFORM-ARCH, before `npm pack`. It is the file that FOREDRAFT_LIB names, else the
// repository's target/release/libforedraft.so, which is built if it is not there.
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const repository = path.resolve(__dirname, '../..');
const name = { darwin: 'libforedraft.dylib', win32: 'foredraft.dll' }[process.platform] ?? 'libforedraft.so';
const named = process.env.FOREDRAFT_LIB;
const source = named ? path.resolve(repository, named) : path.join(repository, 'target/release', name);

const manifest = fs.readFileSync(path.join(repository, 'Cargo.toml'), 'utf8');
const version = /^version = "([^"]+)"/m.exec(manifest)[1];
if (version !== require('../package.json').version) {
  throw new Error(`node/package.json: expected version ${version}, which Cargo.toml has`);
}
if (!named && !fs.existsSync(source)) execFileSync('make', ['-C', repository, 'build'], { stdio: 'inherit' });

const target = path.join(__dirname, '../native', `${process.platform}-${process.arch}`);
fs.rmSync(path.dirname(target), { recursive: true, force: true });
fs.mkdirSync(target, { recursive: true });
fs.copyFileSync(source, path.join(target, path.basename(source)));
