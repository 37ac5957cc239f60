/** JSON, as requests take it and answers hold it. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json | undefined };

/** A JSON schema, or what makes one of itself (`toJSONSchema()`). */
export type Schema = { toJSONSchema(): object } | object;

/** Where a model file is: its path, a part of an open file, or memory. See "Models from elsewhere" in docs/reference.md. */
export type Model = string | { path: string } | { fd: number; offset?: number | string; length?: number | string } |
  { address: number | string; length: number | string };

/** What `Engine.load` takes: every key of `init` in docs/reference.md. */
export interface Config {
  model: Model;
  model_alias?: string;
  model_draft?: Model;
  n_ctx?: number;
  n_ctx_draft?: number;
  n_parallel?: number;
  kv_unified?: boolean;
  n_batch?: number;
  n_ubatch?: number;
  n_threads?: number;
  n_threads_batch?: number;
  /** Thread priority from -1 (low) to 3 (realtime). */
  prio?: number;
  cpu_mask?: string;
  cpu_range?: string;
  cpu_strict?: boolean;
  poll?: number;
  frame_budget?: false | { busy_ms: number; per_ms: number };
  n_gpu_layers?: number | string;
  n_gpu_layers_draft?: number | string;
  chat_template?: string;
  embedding?: boolean;
  speculative?: boolean | Speculative;
  max_queue?: number;
  log_level?: 'none' | 'error' | 'warn' | 'info' | 'debug' | number;
  seed?: number;
  [key: string]: unknown;
}

/** How to speculate. */
export interface Speculative {
  type?: string | string[];
  n_max?: number;
  n_min?: number;
  p_min?: number;
  n_branches?: number;
  verify?: 'coupled' | 'match' | 'rejection' | 'block';
  adaptive?: boolean | 'heuristic';
  [key: string]: unknown;
}

export interface Message {
  role: string;
  content?: string | null | Array<{ type: 'text'; text: string }>;
  [key: string]: unknown;
}

/** A request: every key of docs/reference.md. */
export interface Request {
  prompt?: string | Array<string | number>;
  prompts?: Array<string | Array<string | number>>;
  messages?: Message[];
  tools?: object[];
  /** The completion is JSON that is valid under this schema. */
  schema?: Schema;
  json_schema?: object | string;
  grammar?: string;
  n_predict?: number;
  max_tokens?: number;
  temperature?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  seed?: number;
  stop?: string | string[];
  n_probs?: number;
  n_cmpl?: number;
  timeout_ms?: number;
  return_tokens?: boolean;
  response_fields?: string[];
  speculative?: boolean | Speculative;
  prediction?: { type: 'content'; content: string };
  tag?: unknown;
  [key: string]: unknown;
}

/** More of a completion. */
export interface Update {
  content: string;
  stop: false;
  id: number;
  index?: number;
  tokens?: number[];
  sources?: string[];
  completion_probabilities?: unknown[];
  delta?: Record<string, unknown>;
  [key: string]: unknown;
}

/** A whole completion: the final response, with all its text in `content`. */
export interface Completion {
  content: string;
  stop: true;
  id: number;
  stop_type: 'eos' | 'word' | 'limit' | 'timeout' | 'cancelled' | 'error';
  stopping_word: string;
  tokens_predicted: number;
  tokens_evaluated: number;
  timings: { prompt_n: number; predicted_n: number; predicted_per_second: number; [key: string]: number };
  speculative?: { accept_rate: number; n_drafted: number; n_accepted: number; [key: string]: unknown };
  tokens?: number[];
  sources?: string[];
  completion_probabilities?: unknown[];
  message?: Message;
  warnings?: string[];
  [key: string]: unknown;
}

export interface Status {
  state: 'uninitialized' | 'loading' | 'ready' | 'failed';
  progress: number;
  error: string | null;
  model: string | null;
  n_ctx: number;
  n_parallel: number;
  slots: Array<{ id: number; state: string; request_id: number | null; n_past: number }>;
  queue: number;
  [key: string]: unknown;
}

export interface Options {
  /** Cancels it; what was awaited is then rejected with the signal's reason. */
  signal?: AbortSignal;
}

export interface LoadOptions extends Options {
  /** Told how far the load is, 0 to 1. */
  onProgress?: (progress: number) => void;
}

/** A failure that the library reports. */
export class ForedraftError extends Error {
  /** A word of the library's closed list: `invalid_request`, `not_initialized`, `queue_full`, ... */
  readonly code: string;
  /** The HTTP-style number that goes with it. */
  readonly status: number;
  /** The whole error object. */
  readonly answer: Record<string, unknown>;
}

/** A request, which begins when it is first read. Leaving its loop cancels it. */
export class Stream implements AsyncIterableIterator<Update> {
  private constructor();
  readonly id: number | undefined;
  readonly finished: boolean;
  /** What was found out about the prompt, once it has begun. */
  readonly promptStats: unknown;
  /** The answer, once it has ended. */
  readonly completion: Completion;
  /** The answers of all its texts (`prompts`, `n_cmpl`), once it has ended. */
  readonly completions: Completion[];
  cancel(): void;
  /** Reads it to its end, and returns the answer. */
  wait(): Promise<Completion>;
  next(): Promise<IteratorResult<Update>>;
  return(value?: unknown): Promise<IteratorResult<Update>>;
  throw(error?: unknown): Promise<IteratorResult<Update>>;
  [Symbol.asyncIterator](): this;
}

/** Models and the threads that run them. Engines are independent of each other. */
export class Engine {
  /** An engine without a model: `load` loads one. */
  constructor();
  static load(config: string | Config, options?: LoadOptions): Promise<Engine>;
  /** Loads models in place of what is loaded. */
  load(config: string | Config, options?: LoadOptions): Promise<void>;
  unload(): Promise<void>;
  /** Ends what runs, and the engine with it. */
  close(): Promise<void>;
  readonly closed: boolean;
  status(): Status;
  /** A completion as it is generated, for `for await`. */
  stream(request: string | Request, options?: Options): Stream;
  /** A whole completion. */
  complete(request: string | Request, options?: Options): Promise<Completion>;
  /** The answer to a conversation. */
  chat(messages: Message[], request?: Request, options?: Options): Promise<Completion & { message: Message }>;
  tokenize(text: string, options?: { add_special?: boolean; parse_special?: boolean }): Promise<number[]>;
  detokenize(tokens: Iterable<number>, options?: { special?: boolean }): Promise<string>;
  applyTemplate(messages: Message[], options?: Record<string, unknown>): Promise<string>;
  embed(content: string, options?: { embd_normalize?: number }): Promise<number[]>;
  sessionSave(filename: string, options?: { id_slot?: number }): Promise<Record<string, unknown>>;
  sessionLoad(filename: string, options?: { id_slot?: number }): Promise<Record<string, unknown>>;
  lookupCache(request: Record<string, unknown>): Promise<Record<string, unknown>>;
  lookupCreate(request: Record<string, unknown>): Promise<Record<string, unknown>>;
  lookupMerge(request: Record<string, unknown>): Promise<Record<string, unknown>>;
  lookupStats(request: Record<string, unknown>): Promise<Record<string, unknown>>;
}

/** The library's version. */
export function version(): string;
