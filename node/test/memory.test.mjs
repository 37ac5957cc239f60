import assert from 'node:assert/strict';
import test from 'node:test';
import { createRequire } from 'node:module';
import { Engine } from 'foredraft';
import { config, draft, run } from './common.mjs';

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
  // What a runtime keeps stops growing. A leak is there in each series.
  let before = await requests(500);
  const grown = [];
  while (grown.length < 4 && !(grown.at(-1) < 8e6)) {
    const after = await requests(1500);
    grown.push(after - before);
    before = after;
  }
  await engine.close();
  assert.ok(grown.at(-1) < 8e6, `${grown} bytes more after each 1500 requests`);
});

test('engines that were dropped are closed', { skip: process.platform !== 'linux' }, async () => {
  const { code, signal, err } = await run(`
    import fs from 'node:fs';
    import { Engine } from 'foredraft';
    const engines = () => fs.readdirSync('/proc/self/task').filter(task => {
      try { return fs.readFileSync('/proc/self/task/' + task + '/comm', 'utf8').startsWith('foredraft-work'); } catch { return false; }
    }).length;
    const collect = () => new Promise(resolve => setTimeout(resolve, 10)).then(globalThis.gc);
    async function use(more) {
      const engine = await Engine.load(config);
      if (engines() === 0) process.exit(3);
      await engine.complete({ prompt: 'Once', n_predict: 2, ...more });
      await engine.stream({ ...endless, ...more }).next();
    }
    await use({});
    await use({ logitsProcessor() {} });
    while (engines() > 0) await collect();
    // A stream keeps its engine.
    const stream = await Engine.load(config).then(engine => engine.stream(story));
    for (let i = 0; i < 5; i++) await collect();
    if ((await stream.wait()).tokens_predicted !== story.n_predict) process.exit(2);
  `, { args: ['--expose-gc'] });
  assert.deepEqual([code, signal], [0, null], err);
});
