// Downloads, from the server of the repository's tests/hub.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Engine, download } from 'foredraft';
import { models, story, target } from './common.mjs';

const hub = process.env.FOREDRAFT_HUB;
let server, home;
before(async () => {
  server = spawn('python3', [path.join(hub, 'server.py'), models], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [address] = await once(server.stdout, 'data');
  home = fs.mkdtempSync(path.join(os.tmpdir(), 'hub-'));
  Object.assign(process.env, { HF_ENDPOINT: String(address).trim(), HF_HOME: home });
});
after(() => {
  server.kill();
  fs.rmSync(home, { recursive: true });
});

test('the program downloads in spite of faults', () => {
  const program = path.join(path.dirname(createRequire(import.meta.url).resolve('foredraft')), 'get.cjs');
  const { status, stdout, stderr } = spawnSync('python3', [path.join(hub, 'check.py'), process.execPath, program], { encoding: 'utf8' });
  assert.equal(status, 0, stdout + stderr);
});

test('an engine downloads its models', async () => {
  const told = [];
  const config = { model: 'hf:stories/target', model_draft: 'hf:stories/draft', n_ctx: 512, warmup: false };
  const engine = await Engine.load(config, { onProgress: done => { told.push(done); } });
  assert.ok(engine.status().model.startsWith(home));
  assert.ok(told[0] > 0 && told.at(-1) === 1, told);
  const { content } = await engine.complete(story);
  await engine.close();
  const plain = await Engine.load({ model: target, n_ctx: 512, warmup: false });
  assert.equal((await plain.complete(story)).content, content);
  await plain.close();
});

test('a signal ends a download', async () => {
  const controller = new AbortController();
  const loading = Engine.load('hf:slow/model', { signal: controller.signal, onProgress: () => controller.abort(new Error('enough')) });
  await assert.rejects(loading, /enough/);
});

test('what is beside a model is chosen', async () => {
  assert.deepEqual(Object.keys(await download('tiny/model', { beside: ['model_draft'] })), ['model', 'model_draft']);
  await assert.rejects(download('tiny/model:Q5_K_M'), { code: 'not_found', message: /tiny-Q8_0\.gguf/ });
});
