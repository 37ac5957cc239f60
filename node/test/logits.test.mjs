// Processors of logits, and the ends of programs that have one.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Engine } from 'foredraft';
import { config, endless, idle, run, testEnds, until } from './common.mjs';

const request = { prompt: 'Once upon a time', n_predict: 40, seed: 7, repeat_penalty: 1, return_tokens: true };
const drafted = { adaptive: false, n_max: 5 };

let engine;
before(async () => { engine = await Engine.load(config); });
after(() => engine.close());

/** A processor that leaves one token alone. */
const only = token => (tokens, logits) => {
  const value = logits[token];
  logits.fill(-Infinity);
  logits[token] = value;
};

test('processors change the completion, and speculation does not', async () => {
  const { n_vocab: vocabularySize } = await engine.modelInfo();
  const prompt = await engine.tokenize(request.prompt);
  for (const temperature of [0, 0.8]) {
    const seen = [];
    const logitsProcessor = (tokens, logits) => {
      assert.ok(tokens instanceof Int32Array && logits instanceof Float32Array && logits.length === vocabularySize);
      seen.push([...tokens]);
      logits[tokens.at(-2)] = -Infinity;
    };
    const plain = await engine.complete({ ...request, temperature, speculative: false });
    const expected = await engine.complete({ ...request, temperature, speculative: false, logitsProcessor });
    assert.notEqual(expected.content, plain.content);
    assert.ok(expected.tokens.every((token, i) => token !== expected.tokens[i + 2]));
    seen.length = 0;
    const answer = await engine.complete({ ...request, temperature, speculative: drafted, logitsProcessor });
    assert.equal(answer.content, expected.content);
    assert.ok(answer.speculative.n_accepted > 0);
    const whole = [...prompt, ...answer.tokens];
    assert.deepEqual(seen, answer.tokens.map((_, i) => whole.slice(0, prompt.length + i)));
  }
});

test('requests and engines beside each other have their own processors', async () => {
  const other = await Engine.load(config);
  const plain = { ...request, n_predict: 6, temperature: 0 };
  const { tokens } = await engine.complete(plain);
  const answers = await Promise.all([
    engine.complete({ ...plain, logitsProcessor: only(70) }), engine.complete({ ...plain, logitsProcessor: only(71) }), engine.complete(plain),
    other.complete({ ...plain, logitsProcessor: only(72) }), other.complete(plain),
  ]);
  await other.load(config); // keeps the callback
  assert.deepEqual((await other.complete({ ...plain, logitsProcessor: only(70) })).tokens, Array(6).fill(70));
  await other.close();
  assert.deepEqual(answers.map(answer => answer.tokens), [Array(6).fill(70), Array(6).fill(71), tokens, Array(6).fill(72), tokens]);
});

test('a processor can cancel, and what it throws ends the request', async () => {
  const stream = engine.stream({ ...endless, logitsProcessor: tokens => { if (tokens.length > 12) stream.cancel(); } });
  assert.equal((await stream.wait()).stop_type, 'cancelled');

  let calls = 0;
  const broken = { ...endless, logitsProcessor: () => { if (++calls === 4) throw new RangeError('mine'); } };
  await assert.rejects(engine.complete(broken), { name: 'RangeError', message: 'mine' });
  assert.equal(calls, 4);
  await assert.rejects(engine.complete({ ...endless, logitsProcessor: async () => {} }), /logitsProcessor: expected a function that is not async/);
  await assert.rejects(engine.complete({ ...endless, logitsProcessor: (_, logits) => logits.fill(NaN) }), { code: 'invalid_request' });
  await idle(engine);
  assert.equal((await engine.complete({ prompt: 'Once', n_predict: 3 })).tokens_predicted, 3);
});

test('a stream with a processor that was left or forgotten ends', async () => {
  for await (const _ of engine.stream({ ...endless, logitsProcessor: () => {} })) break;
  await idle(engine);
  await engine.stream({ ...endless, logitsProcessor: () => {} }).next();
  await until('a cancelled request', () => {
    globalThis.gc?.();
    return globalThis.gc === undefined || engine.status().slots.every(slot => slot.request_id === null);
  });
});

test('an isolated engine has processors', { skip: process.platform !== 'linux' }, async () => {
  const isolated = await Engine.load({ ...config, isolate: true });
  const { tokens } = await isolated.complete({ ...request, n_predict: 6, logitsProcessor: only(70) });
  assert.deepEqual(tokens, Array(6).fill(70));
  await isolated.close();
});

const begin = `
  import { Engine } from 'foredraft';
  const engine = await Engine.load(config);
  const busy = ms => { for (const end = Date.now() + ms; Date.now() < end;); };
  const stream = async logitsProcessor => { for await (const _ of engine.stream({ ...endless, logitsProcessor })); };
  // Calls a function at the fifth token.
  const atFifth = call => { let n = 0; stream(() => { if (++n === 5) call(); }); };
`;

const ends = {
  'after a completion, naturally': ["await engine.complete({ prompt: 'Once', n_predict: 3, logitsProcessor() {} });", 0],
  'with a stream left, naturally': ['await engine.stream({ ...endless, logitsProcessor() {} }).next();', 0],
  'naturally after an async processor failed': [`
    for (const logitsProcessor of [async () => { throw new Error('mine'); }, () => ({ then(_, reject) { reject(new Error('mine')); } })]) {
      const error = await engine.complete({ ...endless, logitsProcessor }).catch(error => error);
      if (!/not async/.test(error.message)) process.exit(2);
    }
    await engine.close();
    await new Promise(resolve => setTimeout(resolve, 50));`, 0],
  'by process.exit in a processor': ['atFifth(() => process.exit(3));', 3],
  'by process.exit while a call is due': ['atFifth(() => setImmediate(() => { busy(200); process.exit(3); }));', 3],
  'by process.exit while the worker starts': ['stream(() => {}); setImmediate(() => process.exit(3));', 3],
  'by process.exit while it closes': ['atFifth(() => setImmediate(() => { engine.close(); busy(200); process.exit(3); }));', 3],
  'by process.exit while it unloads': ['atFifth(() => setImmediate(() => { engine.unload(); busy(200); process.exit(3); }));', 3],
  'by an error while a call is due': ['atFifth(() => setImmediate(() => { busy(200); throw new Error("mine"); }));', 1],
};

testEnds('a process with a processor', begin, ends);

test('a worker has no processors', async () => {
  const { code, out, err } = await run(`
    import { Worker } from 'node:worker_threads';
    new Worker(\`
      const { Engine } = require('foredraft');
      Engine.load(\${JSON.stringify(config)}).then(async engine => {
        await engine.complete({ prompt: 'Once', logitsProcessor() {} }).catch(error => console.log(error.code, error.message));
        await engine.close();
      });
    \`, { eval: true, execArgv: [] });
  `);
  assert.equal(code, 0, err);
  assert.match(out, /^invalid_request logitsProcessor: expected a request of the main thread/);
});
