// Programs that are bundled by esbuild, or packed by Electron.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { test } from 'node:test';
import { target } from './common.mjs';

const require = createRequire(import.meta.url);
const modules = path.resolve(path.dirname(require.resolve('foredraft')), '../..');
const project = path.dirname(modules);
const esbuild = await import('esbuild').catch(() => undefined);

const program = `
import { Engine } from 'foredraft';
async function main() {
  let last;
  const engine = await Engine.load({ model: process.argv[2], warmup: false, n_threads: 1 });
  console.log((await engine.complete({ prompt: 'Once upon a time', n_predict: 8, temperature: 0, logitsProcessor: tokens => { last = tokens.at(-1); } })).content, last);
  await engine.close();
}
main();
`;

/** The output of a file in a folder of the project, where the file finds the project's packages. */
function runs(folder, name, source) {
  const file = path.join(folder, name);
  fs.writeFileSync(file, source);
  return execFileSync(process.execPath, [file, target], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'], env: { ...process.env, FOREDRAFT_LIB: '' } });
}

test('a bundle of esbuild leaves the package, or koffi, outside', { skip: esbuild === undefined }, async () => {
  const folder = fs.mkdtempSync(path.join(project, 'bundle-'));
  try {
    const expected = runs(folder, 'plain.mjs', program);
    assert.ok(expected.trim().length > 10, expected);
    for (const [format, external] of [['esm', 'foredraft'], ['cjs', 'foredraft'], ['cjs', 'koffi']]) {
      const options = { bundle: true, platform: 'node', format, external: [external], write: false, logLevel: 'silent' };
      const built = await esbuild.build({ ...options, stdin: { contents: program, resolveDir: folder } });
      const [{ text }] = built.outputFiles;
      assert.equal(text.includes('foredraft_engine_new'), external === 'koffi', 'what is in the bundle');
      assert.equal(runs(folder, format === 'esm' ? 'out.mjs' : 'out.cjs', text), expected, `${format} without ${external}`);
    }
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
});

test('a library that Electron unpacked beside its archive is found', () => {
  const folder = fs.mkdtempSync(path.join(project, 'electron-'));
  try {
    // Within Electron the archive looks like a folder, from which the system loads nothing.
    const [packed, unpacked] = ['app.asar', 'app.asar.unpacked'].map(name => path.join(folder, name));
    const [carrier] = Object.keys(require('foredraft/package.json').optionalDependencies).filter(name => fs.existsSync(path.join(modules, name)));
    for (const name of ['foredraft', carrier]) fs.cpSync(path.join(modules, name), path.join(packed, 'node_modules', name), { recursive: true });
    for (const name of fs.readdirSync(modules).filter(name => /koff|koromix/.test(name))) {
      fs.symlinkSync(path.join(modules, name), path.join(packed, 'node_modules', name));
    }
    fs.mkdirSync(path.join(unpacked, 'node_modules/@foredraft'), { recursive: true });
    fs.renameSync(path.join(packed, 'node_modules', carrier), path.join(unpacked, 'node_modules', carrier));
    fs.mkdirSync(path.join(packed, 'node_modules', carrier));
    fs.copyFileSync(path.join(unpacked, 'node_modules', carrier, 'package.json'), path.join(packed, 'node_modules', carrier, 'package.json'));
    assert.ok(runs(packed, 'main.mjs', program).trim().length > 10);
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
});
