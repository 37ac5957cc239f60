// The package of the platform, and what is said where it is missing.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { target } from './common.mjs';

const require = createRequire(import.meta.url);
const main = require('foredraft/package.json');
const modules = path.resolve(path.dirname(require.resolve('foredraft')), '../..');

test('the library is in the package of the platform', () => {
  const names = Object.keys(main.optionalDependencies);
  const installed = names.filter(name => fs.existsSync(path.join(modules, name)));
  assert.equal(installed.length, 1, names.join());
  const about = JSON.parse(fs.readFileSync(path.join(modules, installed[0], 'package.json'), 'utf8'));
  assert.equal(about.version, main.version);
  assert.deepEqual([about.os, about.cpu], [[process.platform], [process.arch]]);
  if (process.platform === 'linux') assert.equal(about.libc.length, 1);
  assert.ok(!fs.existsSync(path.join(modules, 'foredraft/native')), 'the main package carries no library');
});

test('a missing package of the platform is named, with the reason', () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'foredraft-'));
  try {
    fs.mkdirSync(path.join(folder, 'node_modules'));
    fs.cpSync(path.join(modules, 'foredraft'), path.join(folder, 'node_modules/foredraft'), { recursive: true });
    for (const name of fs.readdirSync(modules).filter(name => /koff|koromix/.test(name))) {
      fs.symlinkSync(path.join(modules, name), path.join(folder, 'node_modules', name));
    }
    const said = (head = '') => {
      try {
        execFileSync(process.execPath, ['-e', `${head} require('foredraft')`], { cwd: folder, stdio: 'pipe', env: { ...process.env, FOREDRAFT_LIB: '' } });
        return 'loaded';
      } catch (error) {
        return String(error.stderr);
      }
    };
    const [name] = Object.keys(main.optionalDependencies).filter(name => name.includes(`${process.platform}-${process.arch}`));
    assert.match(said(), new RegExp(`the package ${name}, which carries the library for this platform, is not installed.*--omit=optional`));
    assert.match(said("require('koffi'); Object.defineProperty(process, 'arch', { value: 'mips' });"), /there is no package @foredraft\/.*mips.*FOREDRAFT_LIB/);
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
});

test('the package of the platform carries the program of isolated engines', { skip: process.platform !== 'linux' }, async () => {
  const { Engine } = require('foredraft');
  const complete = async isolate => {
    const engine = await Engine.load({ model: target, warmup: false, n_threads: 1, isolate });
    try {
      assert.equal(engine.status().isolation?.pid !== undefined, isolate);
      return (await engine.complete({ prompt: 'Once upon a time', n_predict: 12, temperature: 0 })).content;
    } finally {
      await engine.close();
    }
  };
  assert.equal(await complete(true), await complete(false));
});
