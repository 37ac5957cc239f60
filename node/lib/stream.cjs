'use strict';
const { callAside, callNow } = require('./library.cjs');
const { ForedraftError, errorFrom, optionsOf } = require('./errors.cjs');

/** Fields that a completion joins from its updates: the final response has only their last part. */
const JOINED = ['tokens', 'sources', 'completion_probabilities'];

/** The error of a request that asks for a callback that the package cannot set. */
const noCallback = () => new ForedraftError(
  'logits_callback: expected a function as logitsProcessor instead', { code: 'invalid_request', status: 400 });

/** Cancels requests whose streams were forgotten in the middle. */
const forgotten = new FinalizationRegistry(({ engine, id }) => {
  engine.logits.forget(id);
  try {
    if (engine.handle !== undefined) callNow('cancel', engine.handle, { id });
  } catch {
    // It has ended, and so perhaps has its engine.
  }
});

/** A request: `for await (const update of stream)`. It begins when it is first read. Leaving the loop cancels it, and so do
 *  `cancel()` and the signal. After the loop `completion` is the whole answer; with several texts `completions` are. */
class Stream {
  #keeper; // the engine itself, which is closed when nothing refers to it
  #engine; // its shared state: handle, notifier
  #request;
  #signal;
  #id;
  #started = false;
  #finished = false;
  #failure;
  #buffer = [];
  #parts = new Map();
  #finals = new Map();
  #last = Promise.resolve();
  #onAbort = () => this.#abort(this.#signal.reason);

  constructor(keeper, engine, request, options) {
    const { signal } = optionsOf(options, ['signal']);
    this.#keeper = keeper;
    this.#engine = engine;
    this.#request = request;
    this.#signal = signal;
  }

  /** The request's number, once it has begun. */
  get id() {
    return this.#id;
  }

  /** True once the request has ended and its last update was read. */
  get finished() {
    return this.#finished && this.#buffer.length === 0;
  }

  /** The answer, once it has ended. */
  get completion() {
    return this.completions[0];
  }

  /** The answers of all its texts, once it has ended. */
  get completions() {
    if (!this.#finished) throw new Error('the request has not ended: read its updates first');
    if (this.#failure) throw this.#failure;
    return [...this.#finals.keys()].sort((a, b) => a - b).map(index => this.#finals.get(index));
  }

  /** Asks it to end, without waiting: the loop then ends with the next update. */
  cancel() {
    if (this.#finished) return;
    if (!this.#started) {
      this.#started = true;
      this.#finish();
    } else if (this.#id !== undefined && this.#engine.handle !== undefined) {
      try {
        callNow('cancel', this.#engine.handle, { id: this.#id });
      } catch {
        // It has ended.
      }
    }
  }

  /** Reads it to its end, and returns the answer. */
  async wait() {
    while (!(await this.next()).done);
    return this.completion;
  }

  next() {
    // One after the other, however they are called.
    const step = this.#last.then(() => this.#step());
    this.#last = step.catch(() => {});
    return step;
  }

  async return(value) {
    this.#close();
    return { done: true, value };
  }

  async throw(error) {
    this.#close();
    throw error;
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  async [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    this.#close();
  }

  async #step() {
    for (;;) {
      if (this.#buffer.length > 0) return { done: false, value: this.#buffer.shift() };
      if (this.#finished) {
        const failure = this.#failure;
        if (failure) throw failure;
        return { done: true, value: undefined };
      }
      if (!this.#started) {
        await this.#begin();
        continue;
      }
      // Asked for before the poll: news between both ends it.
      const news = this.#engine.notifier.next();
      this.#poll();
      if (this.#buffer.length === 0 && !this.#finished) await news.promise;
      else news.discard();
    }
  }

  async #begin() {
    this.#started = true;
    if (this.#signal?.aborted) return this.#fail(this.#signal.reason);
    this.#signal?.addEventListener('abort', this.#onAbort, { once: true });
    try {
      const answer = await this.#submit();
      this.#id = answer.id;
      this.promptStats = answer.prompt_stats;
      for (const warning of answer.warnings ?? []) process.emitWarning(warning, 'ForedraftWarning');
      if (this.#finished) this.#cancelNow(); // left, or aborted meanwhile
      else forgotten.register(this, { engine: this.#engine, id: this.#id }, this);
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Submits the request, aside, because that tokenizes the prompt and compiles grammars. */
  async #submit() {
    const { logitsProcessor, ...request } = this.#request;
    // JSON has no functions, so a processor of another name would be lost silently.
    if (request.logits_callback || request.logits_processor) throw noCallback();
    const submit = () => callAside('submit', this.#engine.open(), request);
    if (logitsProcessor == null) return submit();
    request.logits_callback = true;
    return this.#engine.logits.submit(() => this.#engine.open(), Stream.#processorOf(new WeakRef(this)), submit);
  }

  /** The processor of a stream, which does not keep a stream that was forgotten. */
  static #processorOf(stream) {
    return (tokens, logits) => stream.deref()?.#process(tokens, logits);
  }

  #process(tokens, logits) {
    if (this.#finished) return;
    try {
      const result = this.#request.logitsProcessor(tokens, logits);
      if (typeof result?.then === 'function') {
        result.then(() => {}, () => {}); // its rejection is handled by this error
        throw new TypeError('logitsProcessor: expected a function that is not async');
      }
    } catch (error) {
      this.#abort(error);
    }
  }

  #cancelNow() {
    this.#engine.logits.forget(this.#id);
    try {
      callNow('cancel', this.#engine.open(), { id: this.#id });
    } catch {
      // It has ended.
    }
  }

  #poll() {
    try {
      const answer = callNow('poll', this.#engine.open(), { id: this.#id });
      for (const update of answer.completion_updates) this.#take(update);
      if (answer.finished) this.#finish();
    } catch (error) {
      this.#fail(error);
    }
  }

  #take(update) {
    const index = update.index ?? 0;
    if (!this.#parts.has(index)) this.#parts.set(index, []);
    const parts = this.#parts.get(index);
    if (!update.stop) {
      parts.push(update);
      this.#buffer.push(update);
      return;
    }
    if (update.success === false) this.#failure = errorFrom(update);
    if (update.content) {
      // The part that was not sent yet becomes an update of its own.
      const rest = { stop: false };
      for (const key of ['id', 'index', 'tag', 'content', ...JOINED]) if (key in update) rest[key] = update[key];
      for (const key of JOINED) delete update[key];
      parts.push(rest);
      this.#buffer.push(rest);
    }
    update.content = parts.map(part => part.content ?? '').join('');
    for (const key of JOINED) {
      const joined = parts.flatMap(part => part[key] ?? []);
      if (joined.length > 0) update[key] = joined;
    }
    this.#finals.set(index, update);
    this.#parts.set(index, []);
  }

  #abort(reason) {
    this.cancel();
    this.#fail(reason);
    this.#buffer = [];
    this.#engine.notifier.wake();
  }

  #fail(error) {
    this.#failure = error;
    this.#finish();
  }

  #close() {
    this.cancel();
    this.#buffer = [];
    if (!this.#finished) this.#finish();
  }

  #finish() {
    this.#finished = true;
    forgotten.unregister(this);
    this.#engine.logits.forget(this.#id);
    this.#signal?.removeEventListener('abort', this.#onAbort);
  }
}

module.exports = { Stream };
