// Helpers of the tests. They test the installed package, with the models in the folder that FOREDRAFT_MODELS names.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import path from 'node:path';
import { test } from 'node:test';

export const models = process.env.FOREDRAFT_MODELS;
export const target = path.join(models, 'stories-target.gguf');
export const draft = path.join(models, 'stories-draft.gguf');
export const config = { model: target, model_draft: draft, n_parallel: 2, n_ctx: 1024, warmup: false };
/** A text without end, which only a cancellation ends. */
export const endless = { prompt: 'Once', ignore_eos: true, n_predict: -1 };
export const story = { prompt: 'Once upon a time', n_predict: 40, temperature: 0 };

/** Ends what hangs; no test asserts how long anything takes. */
const HANG = 600_000;

/** Waits until that is so. */
export async function until(what, so) {
  const end = Date.now() + HANG;
  while (!await so()) {
    if (Date.now() > end) throw new Error(`${what}: not within ${HANG} ms`);
    await new Promise(resolve => setTimeout(resolve, 5));
  }
}

/** Waits until no slot works and nothing is queued. */
export const idle = engine => until('an idle engine', () => {
  const { queue, slots } = engine.status();
  return queue === 0 && slots.every(slot => slot.request_id === null);
});

/** Runs a program in a process of its own. */
export function run(source, { env = {}, kind = 'module', args = [], hang = HANG } = {}) {
  const head = `const target = ${JSON.stringify(target)}, config = ${JSON.stringify(config)},
    endless = ${JSON.stringify(endless)}, story = ${JSON.stringify(story)};\n`;
  const child = spawn(process.execPath, [...args, `--input-type=${kind}`, '-e', head + source], {
    env: { ...process.env, NODE_TEST_CONTEXT: '', ...env }, timeout: hang, killSignal: 'SIGKILL',
  });
  let out = '', err = '';
  child.stdout.on('data', data => { out += data; });
  child.stderr.on('data', data => { err += data; });
  return new Promise(resolve => child.on('close', (code, signal) => resolve({ code, signal, out, err })));
}

/** Tests how programs end that begin with a source: by name, the rest of the program and its exit status. */
export function testEnds(what, begin, ends) {
  for (const [name, [source, status]] of Object.entries(ends)) {
    test(`${what} ends ${name}`, async () => {
      const { code, signal, err } = await run(begin + source);
      assert.deepEqual([code, signal], [status, null], err);
    });
  }
}
