'use strict';
const { callAside, callNow } = require('./library.cjs');
const { ForedraftError, errorFrom } = require('./errors.cjs');

/** Fields that a completion joins from its updates: the final response has only their last part. */
const JOINED = ['tokens', 'sources', 'completion_probabilities'];

/** Why a request cannot change logits. The engine's thread would wait for the event loop at each token, and for ever once that ends. */
const noLogits = () => new ForedraftError(
  'logits_callback: not available in Node, whose event loop the engine would wait for at each token: use logit_bias, grammar or samplers',
  { code: 'invalid_request', status: 400 });

/** Cancels requests whose streams were forgotten in the middle. */
const forgotten = new FinalizationRegistry(({ engine, id }) => {
  try {
    if (engine.handle !== undefined) callNow('cancel', engine.handle, { id });
  } catch {
    // It has ended, and so perhaps has its engine.
  }
});

/** A request: `for await (const update of stream)`. It begins when it is first read. Leaving the loop cancels it, and so do
 *  `cancel()` and the signal. After the loop `completion` is the whole answer; with several texts `completions` are. */
class Stream {
  #engine; // the engine's shared state: handle, notifier
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
  #onAbort = () => this.#abort();

  constructor(engine, request, { signal } = {}) {
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
      // JSON has no functions, so a processor would be lost silently.
      if (this.#request.logits_callback || this.#request.logitsProcessor || this.#request.logits_processor) throw noLogits();
      // Aside, because it tokenizes the prompt and compiles grammars.
      const answer = await callAside('submit', this.#engine.open(), this.#request);
      this.#id = answer.id;
      this.promptStats = answer.prompt_stats;
      for (const warning of answer.warnings ?? []) process.emitWarning(warning, 'ForedraftWarning');
      if (this.#finished) this.#cancelNow(); // left, or aborted meanwhile
      else forgotten.register(this, { engine: this.#engine, id: this.#id }, this);
    } catch (error) {
      this.#fail(error);
    }
  }

  #cancelNow() {
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

  #abort() {
    this.cancel();
    this.#fail(this.#signal.reason);
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
    this.#signal?.removeEventListener('abort', this.#onAbort);
  }
}

module.exports = { Stream };
