'use strict';
// Logits processors: functions that change a row of logits before a token of it is chosen.
//
// The engine's thread calls the library's callback and waits for it. koffi runs such a callback on the event loop of the thread that
// registered it, and waits for that without a bound. The program's own loop may be busy, and there is none once the program has
// ended. So a worker registers the callback, and has nothing else to do: it passes each call on to the program's thread, and sleeps
// until that has answered, or until the program ends.
const { isMainThread, Worker } = require('node:worker_threads');
const { koffi, setLogitsCallback, setLogitsCallbackAside } = require('./library.cjs');
const { ForedraftError } = require('./errors.cjs');

/** The states of the callback, in memory that both threads share. Only the worker begins a call, and only this thread answers it. */
const STATES = { idle: 0, waiting: 1, ended: 2 };

/** The worker's program. It is a text, because bundlers rewrite functions. */
const PASS_CALLS = `
  const { parentPort, workerData: { memory, states, modulePath } } = require('node:worker_threads');
  const koffi = require(modulePath);
  const state = new Int32Array(memory);
  const type = koffi.proto('void Callback(uint64_t id, void *logits, int32_t n_vocab, void *tokens, int32_t n_tokens, uintptr_t user)');
  const callback = koffi.register((...call) => {
    if (Atomics.compareExchange(state, 0, states.idle, states.waiting) !== states.idle) return;
    parentPort.postMessage(call);
    Atomics.wait(state, 0, states.waiting);
  }, koffi.pointer(type));
  parentPort.on('message', () => {}); // keeps the worker alive
  parentPort.postMessage(callback);
`;

const state = new Int32Array(new SharedArrayBuffer(4));
let starting;

function answerCall(next) {
  Atomics.store(state, 0, next);
  Atomics.notify(state, 0);
}

/** The callback's address. The first call starts the worker. */
function startWorker() {
  starting ??= new Promise((resolve, reject) => {
    const workerData = { memory: state.buffer, states: STATES, modulePath: require.resolve('koffi') };
    const worker = new Worker(PASS_CALLS, { eval: true, execArgv: [], workerData });
    worker.once('error', reject);
    worker.once('message', callback => {
      worker.off('error', reject);
      worker.on('message', ([id, logits, vocabularySize, tokens, tokenCount, number]) => {
        const call = { id, logits, vocabularySize, tokens, tokenCount };
        engines.get(number).process(call).finally(() => answerCall(STATES.idle));
      });
      worker.unref();
      resolve(callback);
    });
  });
  return starting;
}

/** Lets all calls of the callback return, so that no engine waits for this thread any more. */
function endCalls() {
  answerCall(STATES.ended);
}

const standardLibrary = koffi.load(process.platform === 'win32' ? 'msvcrt.dll' : null);
const copyMemory = standardLibrary.func('void *memcpy(void *to, const void *from, size_t size)');
/** The copy of the logits that a processor gets, used again for the next token. */
let row = new Float32Array(0);

/** The processors of each engine, by the number that its callback gets. */
const engines = new Map();
let lastNumber = 0;

/** The processors of an engine's requests. */
class LogitsProcessors {
  #number;
  #processors = new Map();
  #submits = new Set();

  /** Submits a request with a processor, which gets the tokens so far and the row of logits, and must not throw. `open` gives the
   *  engine's handle. */
  async submit(open, processor, submit) {
    if (!isMainThread) {
      throw new ForedraftError(
        'logitsProcessor: expected a request of the main thread, because an engine would wait for a worker that is terminated',
        { code: 'invalid_request', status: 400 });
    }
    const callback = await startWorker();
    if (this.#number === undefined) {
      const handle = open();
      this.#number = ++lastNumber;
      engines.set(this.#number, this);
      setLogitsCallback(handle, callback, this.#number);
    }
    const submitted = submit().then(answer => {
      this.#processors.set(answer.id, processor);
      return answer;
    });
    this.#submits.add(submitted);
    return submitted.finally(() => this.#submits.delete(submitted));
  }

  /** Forgets the processor of a request. */
  forget(id) {
    this.#processors.delete(id);
  }

  /** Removes the callback, before the engine's end. */
  async close(handle) {
    if (this.#number === undefined) return;
    await setLogitsCallbackAside(handle, null, 0);
    engines.delete(this.#number);
  }

  /** Lets a request's processor change the row of a call. */
  async process({ id, logits, vocabularySize, tokens, tokenCount }) {
    // A call can come before the answer that has the request's id.
    while (!this.#processors.has(id) && this.#submits.size > 0) await Promise.allSettled(this.#submits);
    const processor = this.#processors.get(id);
    if (processor === undefined) return; // its stream was left
    if (row.length !== vocabularySize) row = new Float32Array(vocabularySize);
    copyMemory(row, logits, row.byteLength);
    processor(koffi.decode(tokens, 'int32_t', tokenCount), row);
    copyMemory(logits, row, row.byteLength);
  }
}

module.exports = { LogitsProcessors, endCalls };
