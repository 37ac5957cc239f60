import assert from 'node:assert/strict';
import test from 'node:test';
import { Engine } from 'foredraft';
import { draft } from './common.mjs';

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
