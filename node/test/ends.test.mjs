// The ends of a process and of a worker, in the middle of everything.
import assert from 'node:assert/strict';
import test from 'node:test';
import { run, testEnds } from './common.mjs';

const begin = `
  import { Engine } from 'foredraft';
  const engine = await Engine.load({ ...config, embedding: true });
  async function busy() { for await (const _ of engine.stream(endless)) console.log('here'); }
`;

const ends = {
  'idle, naturally': ['', 0],
  'after a completion, naturally': ["await engine.complete({ prompt: 'Once', n_predict: 3 });", 0],
  'idle, by process.exit': ['process.exit(3);', 3],
  'with a stream left, naturally': ['await engine.stream(endless).next();', 0],
  'with a stream read, by process.exit': ['busy(); setTimeout(() => process.exit(3), 50);', 3],
  'with six streams read, by process.exit': ['for (let i = 0; i < 6; i++) busy(); setTimeout(() => process.exit(3), 50);', 3],
  'while it loads, by process.exit': ['new Engine().load(config); process.exit(3);', 3],
  'while it loads a little later, by process.exit': ['new Engine().load(config); setTimeout(() => process.exit(3), 30);', 3],
  'while the pool waits for the engine, by process.exit':
    ['for (let i = 0; i < 6; i++) { busy(); engine.embed("Once ".repeat(100)); } setTimeout(() => process.exit(3), 50);', 3],
  'while a queue waits, by process.exit': ['for (let i = 0; i < 20; i++) engine.complete(endless); setTimeout(() => process.exit(3), 50);', 3],
  'by an error': ['busy(); setTimeout(() => { throw new Error("mine"); }, 50);', 1],
  'by a rejection': ['busy(); setTimeout(() => Promise.reject(new Error("mine")), 50);', 1],
  'while it closes, by process.exit': ['busy(); setTimeout(() => { engine.close(); process.exit(3); }, 50);', 3],
};

testEnds('a process', begin, ends);

/** A program whose worker runs that source. */
const withWorker = (worker, main) => `
  import fs from 'node:fs';
  import { Worker, threadId } from 'node:worker_threads';
  import { Engine } from 'foredraft';
  // The engines of this process: each has a thread of this name.
  const threads = () => fs.readdirSync('/proc/self/task').filter(task => {
    try { return fs.readFileSync('/proc/self/task/' + task + '/comm', 'utf8').startsWith('foredraft-work'); } catch { return false; }
  }).length;
  const engine = await Engine.load(config);
  // A thread has its name when it first runs, which can be later than the end of the load.
  await engine.complete({ prompt: 'Once', n_predict: 1 });
  const before = threads();
  if (before !== 1) process.exit(4);
  const worker = new Worker(\`
    const { parentPort } = require('node:worker_threads');
    const { Engine } = require('foredraft');
    const config = \${JSON.stringify(config)}, endless = \${JSON.stringify(endless)};
    (async () => {
      const engine = await Engine.load(config);
      ${worker}
    })();
  \`, { eval: true, execArgv: [] });
  const message = () => new Promise(resolve => worker.once('message', resolve));
  const exit = () => new Promise(resolve => worker.once('exit', resolve));
  ${main}
  // The worker's engine ends, and this thread's does not.
  while (threads() > before) await new Promise(resolve => setTimeout(resolve, 5));
  console.log((await engine.complete({ prompt: 'Once', n_predict: 3 })).stop_type);
`;
const streaming = "for await (const _ of engine.stream(endless)) parentPort.postMessage('here');";

const workers = {
  'ends naturally': ["await engine.complete({ prompt: 'Once', n_predict: 3 });", 'await exit();'],
  'closes its engine and ends': ["await engine.complete({ prompt: 'Once', n_predict: 3 }); await engine.close();", 'await exit();'],
  'exits in a stream': ["setTimeout(() => process.exit(3), 50); " + streaming, 'await exit();'],
  'is terminated in a stream': [streaming, 'await message(); await worker.terminate();'],
  'is terminated in six streams': [`await Promise.all(Array.from({ length: 6 }, async () => { ${streaming} }));`, 'await message(); await worker.terminate();'],
};

for (const [name, [worker, main]] of Object.entries(workers)) {
  test(`a worker ${name}`, { skip: process.platform !== 'linux' }, async () => {
    const { code, signal, out, err } = await run(withWorker(worker, main));
    assert.deepEqual([code, signal, out.trim()], [0, null, 'limit'], err);
    assert.doesNotMatch(err, /Warning/);
  });
}

test('a process exits while a worker streams', async () => {
  const { code, signal, err } = await run(withWorker(streaming, 'await message(); process.exit(3);'));
  assert.deepEqual([code, signal], [3, null], err);
});

// The bare library with a callback of koffi's, which the engine's thread is inside when the process ends.
const bare = `
  const fs = require('node:fs');
  const path = require('node:path');
  const koffi = require('koffi');
  const scope = path.resolve('node_modules/@foredraft');
  const lib = koffi.load(path.join(scope, fs.readdirSync(scope)[0], 'libforedraft.so'));
  const Update = koffi.proto('void Update(uint64_t id, void *user)');
  const setCallback = lib.func('foredraft_set_update_callback', 'void', ['uintptr_t', koffi.pointer(Update), 'void *']);
  const load = lib.func('int foredraft_load(uintptr_t engine, str config)');
  const submit = lib.func('void *foredraft_submit(uintptr_t engine, str request)');
  const engine = lib.func('uintptr_t foredraft_engine_new(void)')();
  let calls = 0;
  const callback = koffi.register(() => { if (++calls === 20) enough(); }, koffi.pointer(Update));
  const hold = setInterval(() => {}, 1000);
  load.async(engine, JSON.stringify(config), () => {
    setCallback(engine, callback, null);
    submit(engine, JSON.stringify(endless));
  });
`;

for (const [name, enough] of Object.entries({
  'process.exit': 'process.exit(0)',
})) {
  for (let attempt = 0; attempt < 3; attempt++) {
    test(`the bare library with a callback survives ${name}`, async () => {
      const { code, signal, err } = await run(`${bare} function enough() { ${enough}; }`, { kind: 'commonjs' });
      assert.deepEqual([code, signal], [0, null], err);
    });
  }
}
