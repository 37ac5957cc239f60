import assert from 'node:assert/strict';
import test from 'node:test';
import { createRequire } from 'node:module';
import { Engine } from 'foredraft';
import { config, draft } from './common.mjs';

test('the same chat as the C function for the same seed', async () => {
  const require = createRequire(import.meta.url);
  const koffi = require('koffi');
  const { packageName } = require('../node_modules/foredraft/lib/platform.cjs');
  const lib = koffi.load(require.resolve(`${packageName()}/libforedraft.so`));
  const Owned = koffi.disposable('str', lib.func('void foredraft_string_free(void *text)'));
  const complete = lib.func('foredraft_complete', Owned, ['uintptr_t', 'str']);
  const handle = lib.func('uintptr_t foredraft_engine_new(void)')();
  assert.equal(lib.func('int32_t foredraft_load(uintptr_t engine, str config)')(handle, JSON.stringify(config)), 0);
  const request = {
    messages: [{ role: 'user', content: 'Repeat after me: Zoë said "two\n€ 🦀" and ran.' }],
    seed: 42, temperature: 0.8, n_predict: 60,
  };
  const { content } = JSON.parse(complete(handle, JSON.stringify(request)));
  lib.func('void foredraft_engine_free(uintptr_t engine)')(handle);
  const engine = await Engine.load(config);
  const { messages, ...rest } = request;
  assert.equal((await engine.chat(messages, rest)).content, content);
  assert.ok(content);
  await engine.close();
});

test('memory stays flat over many short requests', async () => {
  const engine = await Engine.load({ model: draft, n_ctx: 256, warmup: false });
  const requests = async count => {
    for (let i = 0; i < count; i++) await engine.complete({ prompt: `Number ${i}`, n_predict: 1 });
    globalThis.gc();
    return process.memoryUsage().rss;
  };
  const before = await requests(500);
  const after = await requests(1500);
  await engine.close();
  assert.ok(after - before < 8e6, `${(after - before) / 1e6} MB more after 1500 requests`);
});
