import assert from 'node:assert/strict';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, before, test } from 'node:test';
import foredraft, { Engine, ForedraftError, Stream, devices, picture, sound, version } from 'foredraft';
import { config, draft, endless, idle, run, story, target, until } from './common.mjs';

let engine;
before(async () => { engine = await Engine.load(config); });
after(() => engine.close());

async function textOf(stream) {
  let text = '';
  for await (const { content } of stream) text += content;
  return text;
}

test('both kinds of modules are one', () => {
  const required = createRequire(import.meta.url)('foredraft');
  assert.equal(required.Engine, Engine);
  assert.equal(foredraft.Stream, Stream);
  assert.equal(version(), createRequire(import.meta.url)('./../node_modules/foredraft/package.json').version);
});

test('devices are those that a load uses', () => {
  const { devices: found, modules, cpu } = devices();
  assert.deepEqual(found.map(({ name }) => name), engine.status().devices.map(({ name }) => name));
  assert.ok(Array.isArray(modules) && cpu.levels.includes(cpu.level) && cpu.cores >= 1);
});

test('bytes become pictures and sounds', () => {
  const rgba = new Uint8Array([0, 1, 2, 3, 255, 4, 5, 6, 255]).subarray(1);
  assert.deepEqual(picture(rgba, 2, 1), { type: 'image', width: 2, height: 1, format: 'rgba8', base64: 'AQID/wQFBv8=' });
  assert.equal(picture(Buffer.from([1, 2, 3]), 1, 1).format, 'rgb8');
  assert.deepEqual(picture(new Uint8Array([1, 2, 3]).buffer), { type: 'image_url', image_url: { url: 'data:;base64,AQID' } });
  assert.deepEqual(sound(Buffer.from('fLaC')), { type: 'input_audio', input_audio: { data: 'ZkxhQw==' } });
  const tone = 'UklGRiwAAABXQVZFZm10IBAAAAADAAEAgD4AAAD6AAAEACAAZGF0YQgAAAAAAAAAAACAPw==';
  assert.deepEqual(sound(new Float32Array([9, 0, 1]).subarray(1), 16000).input_audio, { data: tone });
});

test('complete and stream give the same', async () => {
  const whole = await engine.complete(story);
  assert.equal(whole.stop_type, 'limit');
  assert.equal(whole.tokens_predicted, 40);
  const stream = engine.stream(story);
  assert.equal(await textOf(stream), whole.content);
  assert.equal(stream.completion.content, whole.content);
  assert.ok(stream.finished && stream.promptStats.total_prompt_tokens > 0);
});

test('models come from open files', { skip: process.platform !== 'linux' }, async () => {
  const { content } = await engine.complete(story);
  const file = fs.openSync(target, 'r');
  const other = await Engine.load({ ...config, model: { fd: file, offset: 0, length: fs.fstatSync(file).size } });
  fs.closeSync(file);
  assert.equal((await other.complete(story)).content, content);
  await other.close();
  await assert.rejects(Engine.load({ model: { fd: 1_000_000 } }), { code: 'invalid_request' });
});

test('a seed gives the same text with and without speculation', async () => {
  const request = { prompt: 'Once', n_predict: 30, temperature: 0.9, seed: 7 };
  const { content } = await engine.complete(request);
  assert.equal((await engine.complete({ ...request, speculative: false })).content, content);
  assert.notEqual((await engine.complete({ ...request, seed: 8 })).content, content);
});

test('tokens and probabilities of updates are joined', async () => {
  const answer = await engine.complete({ ...story, return_tokens: true, n_probs: 2 });
  for (const key of ['tokens', 'sources', 'completion_probabilities']) assert.equal(answer[key].length, 40, key);
  assert.equal(await engine.detokenize(answer.tokens), answer.content);
});

test('several texts', async () => {
  const stream = engine.stream({ prompts: ['Once', 'Then'], n_predict: 8, temperature: 0 });
  const texts = ['', ''];
  for await (const { content, index } of stream) texts[index] += content;
  assert.deepEqual(stream.completions.map(answer => answer.content), texts);
  assert.ok(texts[0] && texts[1]);
});

test('fields that are left out leave requests whole', async () => {
  const request = { prompt: 'Once', n_predict: 3, seed: 1 };
  const expected = await engine.complete(request);
  for (const response_fields of [['content'], ['timings/prompt_n']]) {
    const answer = await engine.complete({ ...request, response_fields });
    assert.equal(answer.content, expected.content);
    assert.ok(answer.id > expected.id && !('model' in answer));
    const stream = engine.stream({ ...request, response_fields, n_cmpl: 2 });
    for await (const _ of stream);
    assert.deepEqual(stream.completions.map(({ index }) => index), [0, 1]);
  }
});

test('chat', async () => {
  const messages = [{ role: 'user', content: 'Tell me a story about Zoë.' }];
  const request = { n_predict: 20, temperature: 0 };
  const { content, message } = await engine.chat(messages, request);
  assert.equal(message.role, 'assistant');
  const prompt = await engine.applyTemplate(messages);
  assert.equal((await engine.complete({ prompt, ...request })).content, content);
});

test('tools are called, and deltas add up to the message', async () => {
  const parameters = { type: 'object', properties: { place: { enum: ['river', 'hill'] } }, required: ['place'], additionalProperties: false };
  const tools = [{ type: 'function', function: { name: 'look', parameters } }];
  const messages = [{ role: 'user', content: 'Look.' }];
  const request = { tools, tool_choice: 'required', parallel_tool_calls: false, n_predict: 200, seed: 3 };
  const { message, finish_reason, usage } = await engine.chat(messages, request);
  const [call] = message.tool_calls;
  assert.ok(finish_reason === 'tool_calls' && call.function.name === 'look' && call.id);
  assert.ok(['river', 'hill'].includes(JSON.parse(call.function.arguments).place));
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  let streamed = '';
  for await (const { delta } of engine.stream({ messages, ...request })) {
    for (const piece of delta.tool_calls ?? []) streamed += piece.function.arguments ?? '';
  }
  assert.equal(streamed, call.function.arguments);
  messages.push(message, { role: 'tool', tool_call_id: call.id, name: 'look', content: 'Water.' });
  assert.equal((await engine.chat(messages, { tools, tool_choice: 'none', n_predict: 8 })).message.tool_calls, undefined);
});

test('a schema shapes the answer', async () => {
  const json = { type: 'object', properties: { n: { type: 'integer', minimum: 0, maximum: 9 } }, required: ['n'], additionalProperties: false };
  for (const schema of [json, { toJSONSchema: () => json }]) {
    const { n } = JSON.parse((await engine.complete({ prompt: 'A number:', schema, n_predict: 100, seed: 1 })).content);
    assert.ok(n >= 0 && n <= 9);
    const asked = { messages: [{ role: 'user', content: 'A number?' }], schema, n_predict: 1, response_fields: ['prompt'] };
    assert.ok((await engine.complete(asked)).prompt.includes(JSON.stringify(json)));
    assert.ok(!(await engine.complete({ ...asked, schema_in_prompt: false })).prompt.includes('integer'));
  }
});

test('a model tells what it is, and the probabilities of a prompt', async () => {
  const { n_vocab, eos, metadata } = await engine.modelInfo();
  assert.ok(eos < n_vocab && metadata['general.architecture'] === 'llama');
  assert.ok((await engine.modelInfo({ model: 'draft' })).size < (await engine.modelInfo()).size);
  const { prompt_logprobs: [first, ...others], tokens_evaluated } = await engine.complete({ prompt: 'Once upon a time', n_predict: 0, prompt_logprobs: 2 });
  assert.equal(others.length, tokens_evaluated - 1);
  assert.ok(first.logprob === null && others.every(({ logprob, top_logprobs }) => logprob < 0 && top_logprobs.length === 2));
});

test('tokens, sessions and n-gram caches', async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'foredraft-'));
  try {
    const ids = await engine.tokenize('Hello, world', { add_special: false });
    assert.equal(await engine.detokenize(ids), 'Hello, world');
    assert.deepEqual(engine.tokenizeSync('Hello, world', { add_special: false }), ids);
    assert.equal(engine.detokenizeSync(ids), 'Hello, world');
    assert.throws(() => engine.detokenizeSync([-1]), { code: 'invalid_request' });
    await engine.complete({ prompt: 'Once upon a time', n_predict: 4, id_slot: 0 });
    const saved = await engine.sessionSave(path.join(folder, 'session'), { id_slot: 0 });
    const restored = await engine.sessionLoad(path.join(folder, 'session'), { id_slot: 1 });
    assert.ok(saved.n_saved > 0 && restored.n_restored === saved.n_saved);
    assert.equal((await engine.sessionErase({ id_slot: 1 })).n_erased, saved.n_saved);
    const made = await engine.lookupCreate({ text: 'one two three one two three', output: path.join(folder, 'cache') });
    const input = path.join(folder, 'cache');
    const merged = await engine.lookupMerge({ inputs: [input, input], output: path.join(folder, 'merged') });
    assert.equal(merged.n_observations, 2 * made.n_observations);
    assert.ok((await engine.lookupCache({ action: 'stats', cache: 'dynamic' })).success);
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
});

test('a prepared turn', async () => {
  const turn = { prompt: 'Once upon a time, there was a cat that', conversation: 'cat', n_predict: 4, seed: 1 };
  const alone = await engine.complete(turn);
  assert.ok(await engine.prepare({ ...turn, begin: true }) > 0);
  assert.equal((await engine.complete(turn)).content, alone.content);
  await assert.rejects(engine.prepare({ prompt: 'a' }), { code: 'invalid_request' });
});

test('decisions', async () => {
  const questions = {
    thing: { type: 'choice', instructions: 'What did Tom have?', criteria: { kite: null, hat: 'on a head' } },
    lost: { type: 'noul', instructions: 'Tom lost something.' },
  };
  const answers = await engine.decide('Tom had a red kite.', questions);
  assert.deepEqual(Object.keys(answers), ['thing', 'lost']);
  assert.ok(answers.thing.probabilities[answers.thing.choice] >= 0.5 && answers.lost.noul > 0);
  const { lost } = await engine.decide(null, { lost: questions.lost }, { messages: [{ role: 'user', content: 'Tom had a red kite.' }] });
  assert.deepEqual(lost, answers.lost);
  await assert.rejects(engine.decide('a', {}), { code: 'invalid_request' });
});

test('embeddings', async () => {
  const other = await Engine.load({ model: target, embedding: true, warmup: false });
  const vector = await other.embed('Hello');
  assert.deepEqual(await other.embedMany(['Hello', 'Good bye']), [vector, await other.embed('Good bye')]);
  assert.deepEqual(await other.embedMany([]), []);
  const ofTokens = await other.embedTokens('Hello');
  assert.equal(ofTokens.length, (await other.tokenize('Hello')).length);
  assert(ofTokens.every((of) => of.length === vector.length));
  await assert.rejects(other.rerank('Hello', ['Good bye'], { top_n: 1 }), { code: 'invalid_request' });
  assert.ok(Math.abs(vector.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-3);
  await other.close();
});

// Leaving.

test('leaving a loop cancels', async () => {
  const stream = engine.stream(endless);
  for await (const _ of stream) break;
  await idle(engine);
  assert.ok(stream.finished);
});

test('an exception in the loop cancels', async () => {
  await assert.rejects(async () => {
    for await (const _ of engine.stream(endless)) throw new TypeError('mine');
  }, TypeError);
  await idle(engine);
});

test('leaving while it begins cancels', async () => {
  const stream = engine.stream(endless);
  const first = stream.next();
  await stream.return();
  await first;
  await idle(engine);
});

test('cancel ends the loop', async () => {
  const stream = engine.stream(endless);
  let text = '';
  for await (const { content } of stream) {
    text += content;
    stream.cancel();
  }
  assert.equal(stream.completion.stop_type, 'cancelled');
  assert.equal(stream.completion.content, text);
});

test('a signal cancels', async () => {
  for (const use of [signal => engine.complete(endless, { signal }), signal => textOf(engine.stream(endless, { signal }))]) {
    const controller = new AbortController();
    const running = use(controller.signal);
    await until('a busy slot', () => engine.status().slots.some(slot => slot.request_id !== null));
    controller.abort(new RangeError('enough'));
    await assert.rejects(running, RangeError);
    await idle(engine);
  }
  await assert.rejects(engine.complete(endless, { signal: AbortSignal.abort() }), { name: 'AbortError' });
  await idle(engine);
});

test('a signal ends a load', async () => {
  const controller = new AbortController();
  const other = new Engine();
  await assert.rejects(other.load(config, { signal: controller.signal, onProgress: () => controller.abort() }), { name: 'AbortError' });
  assert.equal(other.status().state, 'uninitialized');
  await other.load(config);
  assert.ok((await other.complete({ prompt: 'Once', n_predict: 2 })).content);
  await other.close();
});

test('a forgotten stream is cancelled', async () => {
  await (async () => { await engine.stream(endless).next(); })();
  await until('the end of a forgotten stream', () => {
    globalThis.gc();
    return engine.status().slots.every(slot => slot.request_id === null);
  });
});

test('a completion without a limit ends with its context', async () => {
  const small = await Engine.load({ model: target, warmup: false, n_ctx: 256 });
  for (const ask of [more => small.complete({ prompt: 'Once upon a time', ...more }),
    more => small.chat([{ role: 'user', content: 'Count.' }], more), more => small.stream({ prompt: 'Once', ...more }).wait()]) {
    const answer = await ask({ ignore_eos: true });
    assert.equal(answer.stop_type, 'limit');
    assert.equal(answer.tokens_evaluated + answer.tokens_predicted, 256);
    assert.equal(answer.generation_settings.ctx_shift, false);
    // The engine does not change a limit that was asked for.
    assert.equal((await ask({ ignore_eos: true, max_tokens: 3 })).tokens_predicted, 3);
    assert.equal((await ask({ ignore_eos: true, n_predict: 300 })).tokens_predicted, 300);
  }
  assert.equal((await small.complete('Once')).generation_settings.ctx_shift, false);
  // llama.cpp's "no limit" is still there: the context shifts.
  let updates = 0;
  for await (const { content } of small.stream({ prompt: 'Once', n_predict: -1, ignore_eos: true })) {
    updates += content.length > 0;
    if (updates > 300) break;
  }
  assert.ok(updates > 300);
  await small.close();
});

test('a string is a prompt, whatever it begins with', async () => {
  const warnings = [];
  const hear = warning => { if (warning.name === 'ForedraftWarning') warnings.push(warning.message); };
  process.on('warning', hear);
  for (const [text, looks] of [['{"prompt": "Once", "n_predict": 5}', true], ["{prompt: 'Once'", true], ['{ once }', false], ['{', false], ['[1]', false]]) {
    warnings.length = 0;
    const { content, tokens_evaluated } = await engine.complete({ prompt: text, n_predict: 8, temperature: 0 });
    const stream = engine.stream(text);
    let started = '';
    for await (const update of stream) {
      started += update.content;
      if (started.length > 0) break;
    }
    assert.equal(stream.promptStats.total_prompt_tokens, tokens_evaluated, text);
    assert.equal((await engine.complete({ prompt: text, n_predict: 8, temperature: 0 })).content, content);
    await new Promise(resolve => setImmediate(resolve));
    assert.equal(warnings.length, looks ? 1 : 0, text);
  }
  process.off('warning', hear);
});

// The event loop.

test('the loop turns while models load, prompts are read and text is generated', async () => {
  let ticks = 0;
  const timer = setInterval(() => { ticks += 1; }, 1);
  const during = async work => {
    const begun = ticks;
    const result = await work();
    assert.ok(ticks > begun, 'no timer ran meanwhile');
    return result;
  };
  const other = await during(() => Engine.load({ ...config, n_ctx: 4096, warmup: true }));
  const stream = other.stream({ prompt: 'Once upon a time '.repeat(200), n_predict: 50 });
  await during(() => stream.next());
  await during(() => stream.wait());
  clearInterval(timer);
  await other.close();
});

test('streams need no thread of libuv\'s pool', async () => {
  // The pool has one thread. If any of the streams held it, no file could be read.
  const { code, out, err } = await run(`
    import fs from 'node:fs/promises';
    import { Engine } from 'foredraft';
    const engine = await Engine.load({ ...config, n_parallel: 6 });
    const streams = Array.from({ length: 6 }, () => engine.stream(endless));
    const readings = streams.map(async stream => { for await (const _ of stream); });
    while (!engine.status().slots.every(slot => slot.request_id !== null)) await new Promise(resolve => setTimeout(resolve, 5));
    for (let i = 0; i < 20; i++) await fs.readFile(target.replace('stories-target.gguf', 'README.md'));
    for (const stream of streams) stream.cancel();
    await Promise.all(readings);
    await engine.close();
    console.log('read');
  `, { env: { UV_THREADPOOL_SIZE: '1' } });
  assert.deepEqual([code, out.trim()], [0, 'read'], err);
});

test('streams of one engine run together', async () => {
  const texts = await Promise.all(Array.from({ length: 6 }, () => textOf(engine.stream(story))));
  assert.deepEqual(new Set(texts), new Set([(await engine.complete(story)).content]));
});

test('concurrent reads of one stream are in order', async () => {
  const stream = engine.stream(story);
  const reads = await Promise.all(Array.from({ length: 100 }, () => stream.next()));
  const text = reads.filter(({ done }) => !done).map(({ value }) => value.content).join('');
  assert.equal(text, (await engine.complete(story)).content);
});

test('without pipes waits look again', async () => {
  const { code, out, err } = await run(`
    import { Engine } from 'foredraft';
    const { platform } = process;
    Object.defineProperty(process, 'platform', { value: 'win32' });
    const engine = await Engine.load(config);
    Object.defineProperty(process, 'platform', { value: platform });
    console.log((await engine.complete(story)).content);
  `);
  assert.deepEqual([code, out], [0, `${(await engine.complete(story)).content}\n`], err);
});

// Life.

test('engines are independent', async () => {
  const other = await Engine.load({ model: draft, warmup: false });
  const running = engine.stream(endless);
  await running.next();
  assert.ok((await other.complete({ prompt: 'Once', n_predict: 4 })).content);
  await other.close();
  assert.equal((await running.next()).done, false);
  await running.return();
  assert.ok(other.closed);
});

test('progress is told', async () => {
  const told = [];
  const other = await Engine.load(config, { onProgress: progress => told.push(progress) });
  await other.close();
  assert.equal(told.at(-1), 1);
  assert.deepEqual(told, [...told].sort((a, b) => a - b));
});

test('progress that fails ends the load', async () => {
  for (const onProgress of [() => { throw new RangeError('mine'); }, async () => { throw new RangeError('mine'); }]) {
    await assert.rejects(Engine.load(config, { onProgress }), { name: 'RangeError', message: 'mine' });
  }
});

test('a closed engine says so', async () => {
  const other = await Engine.load({ model: draft, warmup: false });
  const running = other.stream(endless);
  await running.next();
  const waiting = assert.rejects(running.wait(), ForedraftError);
  await Promise.all([other.close(), other.close()]);
  await waiting;
  await assert.rejects(other.complete('Once'), { code: 'invalid_engine' });
  assert.throws(() => other.status(), { code: 'invalid_engine' });
});

test('a paused engine waits', async () => {
  const request = { prompt: 'Once upon a time', n_predict: 20, seed: 3 };
  const expected = await engine.complete(request);
  engine.pause();
  engine.pause();
  const waiting = engine.complete(request);
  engine.resume();
  assert.equal(engine.status().paused, true);
  assert.equal(await Promise.race([waiting, new Promise(done => setTimeout(done, 50, 'waits'))]), 'waits');
  engine.resume();
  assert.equal((await waiting).content, expected.content);
  assert.equal(engine.status().paused, false);
  assert.throws(() => engine.resume(), { code: 'invalid_request' });
});

test('pipes are closed', { skip: process.platform !== 'linux' }, async () => {
  const count = () => fs.readdirSync('/proc/self/fd').length;
  const use = async () => {
    const other = await Engine.load({ model: draft, warmup: false });
    await other.complete({ prompt: 'Once', n_predict: 2 });
    await other.close();
  };
  await use();
  const before = count();
  for (let i = 0; i < 3; i++) await use();
  assert.equal(count(), before);
});

// Failures.

test('failures have the library\'s codes', async () => {
  const fails = (request, code) => assert.rejects(engine.complete({ prompt: 'Once', ...request }), error =>
    error instanceof ForedraftError && error.code === code && error.status >= 400);
  await fails({ top_p: 2 }, 'invalid_request');
  await fails({ logits_callback: true }, 'invalid_request');
  await fails({ logits_processor: () => {} }, 'invalid_request');
  await fails({ grammar: 'root ::= (' }, 'invalid_request');
  // A long text is tokenized by the engine's side, after the request was queued.
  const messages = [{ role: 'user', content: 'word '.repeat(5000) }];
  await assert.rejects(engine.chat(messages, { on_overflow: 'error' }), { code: 'context_full' });
  const empty = new Engine();
  await assert.rejects(empty.complete('Once'), { code: 'not_initialized' });
  await empty.close();
});

test('a missing file is ENOENT', async () => {
  const missing = (path, code, status) => error => {
    assert.ok(error instanceof ForedraftError);
    assert.deepEqual([error.code, error.path, error.answer.code, error.status], ['ENOENT', path, code, status]);
    return true;
  };
  await assert.rejects(Engine.load('/nowhere.gguf'), missing('/nowhere.gguf', 'model_error', 500));
  await assert.rejects(Engine.load({ ...config, model_draft: '/no-draft.gguf' }), missing('/no-draft.gguf', 'model_error', 500));
  await assert.rejects(engine.sessionLoad('/none'), missing('/none', 'not_found', 404));
  await assert.rejects(engine.complete({ prompt: 'Once', session_load: '/none' }), missing('/none', 'not_found', 404));
  // Other failures are not.
  await assert.rejects(Engine.load(fileURLToPath(import.meta.url)), error =>
    error.code === 'model_error' && error.status === 500 && !('path' in error));
});

test('a failed load is thrown and not printed as well', async () => {
  const { code, out, err } = await run(`
    import { Engine } from 'foredraft';
    for (const config of [{ model: '/nowhere.gguf' }, { model: target, n_ctx: -5 }, { model: '/etc/passwd' }]) {
      await Engine.load(config).catch(error => console.log(error.status, error.answer.status, error.answer.code));
    }
  `);
  assert.deepEqual([code, out.trim().split('\n')], [0, ['500 500 model_error', '400 400 invalid_request', '500 500 model_error']], err);
  assert.equal(err, '');
});

test('arguments in the wrong place are explained', async () => {
  for (const request of [undefined, null, 5, [{ role: 'user', content: 'Hello' }]]) {
    await assert.rejects(engine.complete(request), { code: 'invalid_request', message: /^request: expected a prompt or an object, such as/ });
  }
  assert.throws(() => engine.stream(), /^ForedraftError: request: expected/);
  await assert.rejects(engine.complete('Once', { n_predict: 3 }), { code: 'invalid_request', message: /^options: expected signal, got n_predict; the keys of a request/ });
  await assert.rejects(Engine.load(config, { onProgess() {} }), /options: expected signal or onProgress, got onProgess/);
  for (const messages of [undefined, 'Hello', { role: 'user', content: 'Hello' }]) {
    await assert.rejects(engine.chat(messages), { code: 'invalid_request', message: /^messages: expected an array of messages, such as \[/ });
  }
  const tools = [function weather() {}];
  await assert.rejects(engine.chat([{ role: 'user', content: 'Hello' }], { tools }), /^ForedraftError: tools\[0\]: expected .*got a function/);
});
