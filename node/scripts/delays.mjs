// How much the library delays the event loop: how late a 10 ms timer is while a model loads, a prompt is read and text is
// generated, beside the same timer in a process that does nothing else at that time (the machine's own noise), and how long
// fs.readFile takes alone and beside six streams.
//   node node/scripts/delays.mjs [target.gguf [draft.gguf]]
import { fork } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Engine } from '../lib/index.mjs';

const at = path => fileURLToPath(new URL(`../../${path}`, import.meta.url));

/** Measures a 10 ms timer until `stop` is called, which returns by how many ms it was late each time. */
function measure() {
  const delays = [];
  let last = performance.now();
  const timer = setInterval(() => {
    const now = performance.now();
    delays.push(Math.max(0, now - last - 10));
    last = now;
  }, 10);
  return () => {
    clearInterval(timer);
    return delays;
  };
}

if (process.argv[2] === '--noise') {
  let stop;
  process.on('message', message => {
    if (message === 'start') stop = measure();
    else if (message === 'stop') process.send(stop());
  });
} else {
  const [model, draft = ''] = process.argv.length > 2 ? process.argv.slice(2) : [at('models/stories-target.gguf'), at('models/stories-draft.gguf')];
  const idle = fork(fileURLToPath(import.meta.url), ['--noise']);
  const figures = delays => {
    const sorted = [...delays].sort((a, b) => a - b);
    const part = p => (sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * p))] ?? 0).toFixed(1).padStart(6);
    return `median${part(0.5)}  99 %${part(0.99)}  max${part(1)} ms (${sorted.length} times)`;
  };
  const during = async (what, work) => {
    idle.send('start');
    const stop = measure();
    const result = await work();
    const own = stop();
    const noise = new Promise(resolve => idle.once('message', resolve));
    idle.send('stop');
    console.log(`${what.padEnd(22)} here   ${figures(own)}\n${''.padEnd(22)} noise  ${figures(await noise)}`);
    return result;
  };
  await during('nothing', () => sleep(1000));
  const engine = await during('load', () => Engine.load({ model, model_draft: draft, n_parallel: 6, n_ctx: 2048 }));
  const endless = { ignore_eos: true, n_predict: -1, timeout_ms: 3000 };
  await during('prompt of 4000 words', () => engine.complete({ prompt: 'once upon a time '.repeat(1000), n_predict: 1 }));
  await during('one stream', () => engine.complete({ prompt: 'Once', ...endless }));
  const streams = () => Array.from({ length: 6 }, (_, i) => engine.complete({ prompt: `Once ${i}`, ...endless }));
  await during('six streams', () => Promise.all(streams()));

  const read = async () => {
    const begun = performance.now();
    for (let i = 0; i < 200; i++) await readFile(at('LICENSE'));
    return `${((performance.now() - begun) / 200).toFixed(2)} ms`;
  };
  console.log(`fs.readFile alone ${await read()}`);
  const running = streams();
  await sleep(500);
  console.log(`fs.readFile beside six streams ${await read()}`);
  await Promise.all(running);
  await engine.close();
  idle.kill();
}
