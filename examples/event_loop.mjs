// The library in Node's event loop, with koffi (`npm ci` in examples/ installs it): libuv waits for updates of requests.
//   node examples/event_loop.mjs ["a prompt" [target.gguf [draft.gguf]]]
// The library writes to a pipe that libuv watches (`notify_fd`). With a callback (`foredraft_set_update_callback`), the engine would wait for
// this thread at every token, and the process could abort if it ended inside a callback. No call here waits for the engine or uses a
// thread of libuv's pool. (The package `foredraft`, in node/, does all of this.)
import { closeSync } from 'node:fs';
import { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import koffi from 'koffi';

const at = path => fileURLToPath(new URL(`../${path}`, import.meta.url));
const lib = koffi.load(process.env.FOREDRAFT_LIB ?? at('target/release/libforedraft.so'));
const Owned = koffi.disposable('Owned', 'str', lib.func('void foredraft_string_free(void *text)'));
const engineNew = lib.func('uintptr_t foredraft_engine_new(void)');
const engineFree = lib.func('void foredraft_engine_free(uintptr_t engine)');
const loadAsync = lib.func('void foredraft_load_async(uintptr_t engine, str config)');

/** Wraps a function of the library that takes an engine and JSON, and returns JSON. */
function json(name, ...parameters) {
  const call = lib.func(name, Owned, ['uintptr_t', ...parameters]);
  return (engine, ...args) => {
    const answer = JSON.parse(call(engine, ...args.map(arg => JSON.stringify(arg))));
    if (answer.error) throw new Error(answer.error);
    return answer;
  };
}

const status = json('foredraft_status');
const submit = json('foredraft_submit', 'str');
const poll = json('foredraft_poll', 'str');

const [prompt = 'Once upon a time', ...given] = process.argv.slice(2);
const [model, draft = ''] = given.length > 0 ? given : [at('models/stories-target.gguf'), at('models/stories-draft.gguf')];

let ticks = 0;
const ticking = setInterval(() => { ticks += 1; }, 10); // the program's other work
const [reader, writer] = pipe();
const engine = engineNew();
try {
  loadAsync(engine, JSON.stringify({ model, model_draft: draft, notify_fd: writer }));
  while (status(engine).state !== 'ready') await sleep(10); // throws if the load failed
  const { id } = submit(engine, { prompt, temperature: 0, n_predict: 64 });
  const news = new Socket({ fd: reader, readable: true, writable: false });
  for await (const _ of news) { // the bytes have no meaning
    const { completion_updates, finished } = poll(engine, { id }); // without timeout_ms it never waits
    for (const { content } of completion_updates) process.stdout.write(content);
    if (finished) break; // closes the reader
  }
  process.stdout.write('\n');
  console.error(`[${ticks} ticks]`);
} catch (error) {
  console.error(`event_loop: ${error.message}`);
  process.exitCode = 1;
} finally {
  clearInterval(ticking);
  engineFree(engine);
  closeSync(writer);
}

/** Both ends of a pipe. Node has no function for it. */
function pipe() {
  const ends = new Int32Array(2);
  if (koffi.load(null).func('int pipe(int *ends)')(ends) !== 0) throw new Error('no pipe');
  return ends;
}
