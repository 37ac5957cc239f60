'use strict';
const { setTimeout: sleep } = require('node:timers/promises');
const library = require('./library.cjs');
const { ForedraftError, errorFrom, invalid, optionsOf, shown } = require('./errors.cjs');
const { download, isRemote } = require('./hub.cjs');
const { LogitsProcessors, endCalls } = require('./logits.cjs');
const { Notifier } = require('./notifier.cjs');
const { Stream } = require('./stream.cjs');

/** Milliseconds between two looks at a load. */
const LOOK = 20;

/** The engines that are not freed yet, with their handles. */
const open = new Map();

/** An engine, as its streams know it. */
class Shared {
  handle = library.engineNew();
  notifier = new Notifier();
  logits = new LogitsProcessors();

  constructor() {
    open.set(this, this.handle);
  }

  open() {
    if (this.handle !== undefined) return this.handle;
    throw new ForedraftError('the engine is closed', { code: 'invalid_engine', status: 400 });
  }

  async close() {
    const { handle } = this;
    if (handle === undefined) return;
    this.handle = undefined;
    // The engine's thread may be in the callback, and must have left it before the process may end.
    await this.logits.close(handle);
    open.delete(this);
    await library.engineFreeAside(handle);
    this.notifier.close();
  }
}

/** Closes engines that were dropped. */
const dropped = new FinalizationRegistry(shared => shared.close());

// Runs before the process, or this worker, ends. Calls that wait in libuv's pool end by it as well: Node waits for them.
process.on('exit', () => {
  endCalls();
  for (const [shared, handle] of open) {
    shared.handle = undefined;
    library.engineFree(handle);
  }
});

/** Models and the threads that run them. Engines are independent of each other. */
class Engine {
  #shared = new Shared();

  /** Makes an engine without a model: `load` loads one. */
  constructor() {
    dropped.register(this, this.#shared);
  }

  /** An engine with a model. */
  static async load(config, options) {
    const engine = new Engine();
    try {
      await engine.load(config, options);
    } catch (error) {
      await engine.close();
      throw error;
    }
    return engine;
  }

  /** Loads models in place of what is loaded. `config`: the path of a model, or an object of its keys. */
  async load(config, options) {
    const { signal, onProgress } = optionsOf(options, ['signal', 'onProgress']);
    signal?.throwIfAborted();
    const given = typeof config === 'string' ? { model: config } : config;
    const whole = { ...await downloaded(given, { signal, onProgress }), ...this.#shared.notifier.config };
    library.loadAsync(this.#shared.open(), JSON.stringify(whole));
    try {
      for (;;) {
        const status = this.status();
        if (status.state === 'failed') throw errorFrom(status);
        if (status.state === 'ready') break;
        if (status.state !== 'loading') {
          throw new ForedraftError('the load was ended by another load or unload', { code: 'cancelled', status: 499 });
        }
        await onProgress?.(status.progress ?? 0);
        await sleep(LOOK, undefined, { signal });
      }
    } catch (error) {
      if (!signal?.aborted) throw error;
      await this.unload();
      throw signal.reason;
    }
    await onProgress?.(1);
  }

  /** The engine's status. Never waits. */
  status() {
    return library.status(this.#shared.open());
  }

  /** Lets the engine's threads sleep, also in the middle of a decode, until as many calls of `resume` have followed. Returns at once. */
  pause() {
    const code = library.pause(this.#shared.open());
    if (code !== 0) throw new ForedraftError(`foredraft_pause returned ${code}`);
  }

  /** Ends a pause. After the last one the threads go on where they were. */
  resume() {
    if (library.resume(this.#shared.open()) === 0) return;
    throw new ForedraftError('resume: the engine is not paused', { code: 'invalid_request', status: 400 });
  }

  /** Ends what runs and frees the models; `load` may follow. */
  async unload() {
    await library.unloadAside(this.#shared.open());
  }

  /** Ends what runs, and the engine with it. Harmless at any time. The collector does so, too. */
  async close() {
    await this.#shared.close();
  }

  get closed() {
    return this.#shared.handle === undefined;
  }

  async [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    await this.close();
  }

  /** A completion as it is generated, for `for await`. `request`: a prompt, or an object of a request's keys. */
  stream(request, options) {
    return new Stream(this, this.#shared, toRequest(request), options);
  }

  /** A whole completion. */
  async complete(request, options) {
    return this.stream(request, options).wait();
  }

  /** The answer to a conversation, with the `message` that continues it. */
  async chat(messages, request = {}, options = undefined) {
    if (messages == null) throw invalid(`messages: expected an array of messages, such as [{ role: 'user', content: 'Hello' }], got ${shown(messages)}`);
    const completion = await this.complete({ ...request, messages }, options);
    completion.message ??= { role: 'assistant', content: completion.content };
    return completion;
  }

  /** Prepares a request that may come. */
  async prepare(request) {
    return (await this.#call('prepare', request)).id;
  }

  /** The answers to questions about a state, any JSON, by their names. */
  async decide(state, questions, options = {}) {
    const answer = await this.#call('decide', { ...options, state, questions });
    if (answer.stop_type !== 'eos') {
      throw Object.assign(new Error(`the decision ended by ${answer.stop_type}`), { code: answer.stop_type });
    }
    return answer.answers;
  }

  async tokenize(text, options = {}) {
    return (await this.#call('tokenize', { ...options, text })).ids;
  }

  async detokenize(tokens, options = {}) {
    return (await this.#call('detokenize', { ...options, tokens: [...tokens] })).content;
  }

  // On this thread: a text of a few kilobytes takes less than going aside does.

  tokenizeSync(text, options = {}) {
    return library.callNow('tokenize', this.#shared.open(), { ...options, text }).ids;
  }

  detokenizeSync(tokens, options = {}) {
    return library.callNow('detokenize', this.#shared.open(), { ...options, tokens: [...tokens] }).content;
  }

  modelInfo(options = {}) {
    return this.#call('model_info', options);
  }

  async applyTemplate(messages, options = {}) {
    return (await this.#call('apply_template', { ...options, messages })).prompt;
  }

  async embed(content, options = {}) {
    return (await this.#call('embed', { ...options, content })).embedding;
  }

  async embedTokens(content, options = {}) {
    return (await this.#call('embed', { ...options, content, of_tokens: true })).embedding;
  }

  async embedMany(texts, options = {}) {
    const input = [...texts];
    return input.length ? (await this.#call('embed', { ...options, input })).data.map(({ embedding }) => embedding) : [];
  }

  async rerank(query, documents, options = {}) {
    return (await this.#call('rerank', { ...options, query, documents: [...documents] })).results;
  }

  sessionSave(filename, options = {}) {
    return this.#call('session_save', { ...options, filename });
  }

  sessionLoad(filename, options = {}) {
    return this.#call('session_load', { ...options, filename });
  }

  sessionErase(options = {}) {
    return this.#call('session_erase', options);
  }

  async conversations() {
    return (await this.#call('conversation', { action: 'list' })).conversations;
  }

  conversation(action, conversation, options = {}) {
    return this.#call('conversation', { ...options, action, conversation });
  }

  lookupCache(request) {
    return this.#call('lookup_cache', request);
  }

  lookupCreate(request) {
    return this.#call('lookup_create', request);
  }

  lookupMerge(request) {
    return this.#call('lookup_merge', request);
  }

  lookupStats(request) {
    return this.#call('lookup_stats', request);
  }

  async #call(name, request) {
    // Awaited here, because a function that waits keeps `this`, and an engine that is kept is not closed.
    return await library.callAside(name, this.#shared.open(), request);
  }
}

/** The keys by which a request says when it ends. Without any, a full context would shift, and the completion might never end. */
const LIMITS = ['n_predict', 'max_tokens', 'max_completion_tokens', 'ctx_shift'];
/** A configuration with paths in place of models to download. A drafter beside a target is its draft. */
async function downloaded(config, { signal, onProgress }) {
  const whole = { ...config };
  if (isRemote(whole.model)) {
    Object.assign(whole, await download(whole.model, { signal, onProgress, beside: whole.model_draft == null ? ['model_draft'] : [] }));
  }
  if (isRemote(whole.model_draft)) whole.model_draft = (await download(whole.model_draft, { signal, onProgress, beside: [] })).model;
  return whole;
}

/** The beginning of a request in JSON. */
const REQUEST = /^\s*\{\s*["']?(?:prompts?|messages)["']?\s*:/;

/** A request as the library takes it. A string is a prompt, whatever it begins with. */
function toRequest(request) {
  if (typeof request === 'string') {
    if (REQUEST.test(request)) {
      process.emitWarning('a string is a prompt, and this one looks like a request: pass the object itself', 'ForedraftWarning');
    }
    return { prompt: request, ctx_shift: false };
  }
  if (request === null || typeof request !== 'object' || Array.isArray(request)) {
    const hint = Array.isArray(request) ? '; chat() takes messages' : '';
    throw invalid(`request: expected a prompt or an object, such as { prompt: 'Once', n_predict: 20 }, got ${shown(request)}${hint}`);
  }
  const { schema, ...rest } = request;
  const isFunction = tool => typeof tool === 'function' || typeof tool?.function === 'function';
  if (Array.isArray(rest.tools) && rest.tools.some(isFunction)) {
    throw invalid(`tools[${rest.tools.findIndex(isFunction)}]: expected { type: 'function', function: { name, description, parameters } }, got a function: `
      + 'the model needs the JSON schema of its arguments');
  }
  if (LIMITS.every(key => rest[key] == null)) rest.ctx_shift = false;
  if (schema === undefined) return rest;
  if (rest.messages != null) rest.schema_in_prompt ??= true;
  return { ...rest, json_schema: typeof schema.toJSONSchema === 'function' ? schema.toJSONSchema() : schema };
}

module.exports = { Engine };
