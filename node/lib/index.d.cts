/// <reference lib="esnext.disposable" />

/** JSON, as requests take it and answers hold it. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json | undefined };

/** A JSON schema, or what makes one of itself (`toJSONSchema()`). */
export type Schema = { toJSONSchema(): object } | object;

/** Where a model file is: its path, a part of an open file, or memory. See "Models from elsewhere" in docs/reference.md. */
export type Model = string | { path: string } | { fd: number; offset?: number | string; length?: number | string } |
  { address: number | string; length: number | string };

/** A LoRA adapter. */
export type Adapter = { scale?: number } & ({ path: string } | { fd: number; offset?: number | string; length?: number | string } |
  { address: number | string; length: number | string });

export type CacheType = 'f32' | 'f16' | 'bf16' | 'q8_0' | 'q4_0' | 'q4_1' | 'iq4_nl' | 'q5_0' | 'q5_1';
export type Verify = 'coupled' | 'match' | 'rejection' | 'block';
export type Prompt = string | Array<string | number>;

/** The argument of `Engine.load`: every key of `foredraft_load` in docs/reference.md. */
export interface Config {
  model: Model;
  model_draft?: Model;
  model_alias?: string;
  chat_template?: string;
  chat_template_file?: string;
  lora?: Array<string | Adapter>;
  override_kv?: string | string[] | { [key: string]: string | number | boolean };
  check_tensors?: boolean;
  vocab_only?: boolean;
  n_gpu_layers?: number | 'auto' | 'all';
  n_gpu_layers_draft?: number | 'auto' | 'all';
  devices?: string | string[];
  devices_draft?: string | string[];
  split_mode?: 'none' | 'layer' | 'row' | 'tensor';
  main_gpu?: number;
  tensor_split?: number[];
  n_cpu_moe?: number | 'all';
  n_cpu_moe_draft?: number | 'all';
  override_tensor?: string | string[] | { [pattern: string]: string };
  override_tensor_draft?: string | string[] | { [pattern: string]: string };
  fit?: boolean | 'on' | 'off';
  fit_margin_mb?: number;
  fit_ctx?: number;
  rpc?: string | string[];
  rpc_timeout_ms?: number;
  use_mmap?: boolean;
  repack?: boolean;
  use_mlock?: boolean;
  numa?: boolean | 'disabled' | 'distribute' | 'isolate' | 'numactl';
  n_ctx?: number;
  n_ctx_draft?: number;
  n_parallel?: number;
  kv_unified?: boolean;
  n_batch?: number;
  n_ubatch?: number;
  cpu_level?: string;
  isolate?: boolean;
  isolate_path?: string;
  isolate_cpus?: string;
  isolate_nice?: number;
  memory_mb?: number;
  fallback?: boolean;
  n_threads?: number;
  n_threads_draft?: number;
  n_threads_batch?: number;
  n_threads_batch_draft?: number;
  flash_attn?: boolean | 'on' | 'off' | 'auto';
  cache_type_k?: CacheType;
  cache_type_v?: CacheType;
  cache_type_k_draft?: CacheType;
  cache_type_v_draft?: CacheType;
  offload_kqv?: boolean;
  swa_full?: boolean;
  rope_freq_base?: number;
  rope_freq_scale?: number;
  rope_scaling?: 'none' | 'linear' | 'yarn' | 'longrope';
  yarn_ext_factor?: number;
  yarn_attn_factor?: number;
  yarn_beta_fast?: number;
  yarn_beta_slow?: number;
  yarn_orig_ctx?: number;
  ctx_shift?: boolean;
  grp_attn_n?: number;
  grp_attn_w?: number;
  embedding?: boolean;
  pooling?: 'none' | 'mean' | 'cls' | 'last' | 'rank';
  reranking?: boolean;
  prio?: number | 'idle';
  prio_batch?: number | 'idle';
  prio_draft?: number | 'idle';
  prio_batch_draft?: number | 'idle';
  cpu_mask?: string;
  cpu_mask_batch?: string;
  cpu_mask_draft?: string;
  cpu_mask_batch_draft?: string;
  cpu_range?: string;
  cpu_range_batch?: string;
  cpu_range_draft?: string;
  cpu_range_batch_draft?: string;
  cpu_strict?: boolean;
  cpu_strict_batch?: boolean;
  cpu_strict_draft?: boolean;
  cpu_strict_batch_draft?: boolean;
  poll?: number;
  poll_batch?: number;
  poll_draft?: number;
  poll_batch_draft?: number;
  frame_budget?: false | { busy_ms: number; per_ms: number };
  seed?: number;
  n_keep?: number;
  n_cache_reuse?: number;
  speculative?: boolean | Speculative;
  lookup_cache_static?: string;
  lookup_cache_dynamic?: string;
  spm_infill?: boolean;
  n_beams?: number;
  draft_vocab?: number;
  draft_weights?: 'measured' | 'file' | 'q8_0' | 'q4_0';
  max_queue?: number;
  cache_ram_mb?: number;
  cache_dir?: string;
  cache_dir_mb?: number;
  mmproj?: Model;
  mmproj_weights?: 'file' | 'q8_0';
  image_min_tokens?: number;
  image_max_tokens?: number;
  image_cache_mb?: number;
  warmup?: boolean;
  log_level?: number | 'none' | 'error' | 'warn' | 'info' | 'debug';
}

/** How to speculate. */
export interface Speculative {
  type?: string | string[];
  model?: 'target' | 'draft';
  verify?: Verify;
  adaptive?: boolean | 'heuristic';
  compare?: boolean;
  n_max?: number;
  n_min?: number;
  n_draft?: number;
  n_max_text?: number;
  p_min?: number;
  p_split?: number;
  n_branches?: number;
  lookup_cache_static?: string;
  lookup_cache_dynamic?: string;
  suffix_depth?: number;
  suffix_factor?: number;
  suffix_p_min?: number;
}

/** A part of a content, as OpenAI has them, pixels, or a sound at a path. The engine reads texts, pictures and sounds, and refuses the others. */
export type ContentPart = TextPart
  | { type: 'image_url'; image_url: { url: string; detail?: 'auto' | 'low' | 'high' } }
  | { type: 'image'; width: number; height: number; format: 'rgb8' | 'rgba8'; base64: string }
  | { type: 'input_audio'; input_audio: { data: string; format: 'wav' | 'mp3' } }
  | SoundPart
  | { type: 'file'; file: { file_data?: string; file_id?: string; filename?: string } };

/** A sound as OpenAI have none: at a path, or a FLAC file. */
export interface SoundPart {
  type: 'input_audio';
  input_audio: { data: string; format?: 'flac' } | { path: string; format?: 'wav' | 'mp3' | 'flac' };
}

/** A picture: pixels of 3 or 4 bytes each, row by row from the top, or without a size the bytes of a PNG, JPEG, GIF or BMP file. */
export function picture(bytes: ArrayBufferView | ArrayBuffer, width: number, height: number): ContentPart;
export function picture(file: ArrayBufferView | ArrayBuffer): ContentPart;

/** A sound: samples from -1 to 1, those of all channels and then the next ones, or without a rate the bytes of a WAV, MP3 or FLAC file. */
export function sound(samples: Float32Array, rate: number, channels?: number): SoundPart;
export function sound(file: ArrayBufferView | ArrayBuffer): SoundPart;

export interface TextPart {
  type: 'text';
  text: string;
}

/** A call of a function; `arguments` is JSON. */
export interface ToolCall {
  id: string;
  type: 'function';
  function: { name: string; arguments: string };
}

/** A message that the engine has answered. It can be appended to the conversation as it is. */
export interface AssistantMessage {
  role: 'assistant';
  /** Empty where the answer is nothing but calls. */
  content: string;
  /** The model's reasoning before the answer. */
  reasoning_content?: string;
  tool_calls?: ToolCall[];
  /** With `functions`: OpenAI's older form of the first call. */
  function_call?: { name: string; arguments: string };
}

/** A message of a conversation. OpenAI's types can be assigned to it, and it to theirs. */
export type Message =
  | { role: 'system' | 'developer'; content: string | TextPart[]; name?: string }
  | { role: 'user'; content: string | ContentPart[]; name?: string }
  | {
      role: 'assistant';
      content?: string | null | Array<TextPart | { type: 'refusal'; refusal: string }>;
      name?: string;
      /** OpenAI's answers have it; the engine ignores it. */
      refusal?: string | null;
      reasoning_content?: string;
      tool_calls?: Array<ToolCall | { id: string; type: 'custom'; custom: { name: string; input: string } }>;
      function_call?: { name: string; arguments: string } | null;
    }
  | { role: 'tool'; content: string | TextPart[]; tool_call_id: string; name?: string }
  | { role: 'function'; content: string | null; name: string };

/** A message as requests take it, also one whose role or further keys only a chat template knows. */
export type GivenMessage = Message | {
  role: string;
  content?: string | null | Array<{ type: string; text?: string }>;
  [key: string]: unknown;
};

/** Which tools the model may call, or must. */
export type ToolChoice = 'auto' | 'none' | 'required' | (string & {}) | { type?: string; function: { name: string } }
  | { type: 'allowed_tools'; allowed_tools: { mode: 'auto' | 'required'; tools: Array<{ [key: string]: unknown }> } };

/** A request: every key of docs/reference.md. Fields that OpenAI's types allow to be null may be; they count as absent. */
export interface Request {
  prompt?: Prompt;
  messages?: GivenMessage[];
  tools?: object[];
  /** The completion is JSON that is valid under this schema, which the model of a chat sees (`schema_in_prompt`). */
  schema?: Schema;
  prompts?: Prompt[];
  chat_template?: string;
  chat_template_kwargs?: { [key: string]: unknown };
  add_generation_prompt?: boolean;
  parse_special?: boolean;
  on_overflow?: 'drop_turns' | 'truncate' | 'error';
  input_prefix?: string;
  input_suffix?: string;
  input_extra?: Array<{ filename?: string; text: string }>;
  choices?: (string | ({ text: string } & Record<string, unknown>))[];
  questions?: Record<string, Question>;
  state?: unknown;
  temperatures?: { choice?: number; score?: number; noul?: number };
  /** Absent: at the latest when the context is full. -1: no limit, because a full context shifts. */
  n_predict?: number;
  max_tokens?: number | null;
  max_completion_tokens?: number | null;
  /** Also a tool's name. */
  tool_choice?: ToolChoice;
  parallel_tool_calls?: boolean;
  functions?: object[];
  function_call?: 'auto' | 'none' | { name: string };
  response_format?: { type: 'text' | 'json_object' | 'json_schema'; schema?: object; json_schema?: { name?: string; schema?: object; strict?: boolean | null } } | null;
  reasoning_format?: 'auto' | 'none' | 'deepseek';
  /** -1: no limit. */
  reasoning_budget_tokens?: number;
  reasoning_budget_message?: string;
  reasoning_budget_start_tag?: string;
  reasoning_budget_end_tags?: string[];
  continue_final_message?: boolean | 'content' | 'reasoning_content';
  logprobs?: boolean | null;
  top_logprobs?: number | null;
  grammar_lazy?: boolean;
  grammar_triggers?: Array<{ type: 'token' | 'word' | 'pattern' | 'pattern_full'; value?: string; token?: number }>;
  grammar_prefix?: string;
  preserved_tokens?: string[];
  generation_prompt?: string;
  timeout_ms?: number;
  conversation?: string | null;
  /** From -10 to 10; 0 is the default. */
  priority?: number;
  deadline_ms?: number | null;
  t_max_predict_ms?: number;
  stop?: string | string[] | null;
  special?: boolean;
  ignore_eos?: boolean;
  grammar?: string;
  json_schema?: object | string;
  schema_in_prompt?: boolean | string;
  property_order?: 'schema' | 'any';
  additional_properties?: boolean;
  logit_bias?: Array<[number | string, number | false]> | Array<{ token: number | string; bias: number | false }> | { [token: string]: number | false } | null;
  seed?: number | null;
  n_cmpl?: number;
  n?: number | null;
  n_beams?: number;
  lora?: Array<{ id: number; scale: number }>;
  n_keep?: number;
  /** false: the completion ends when the context is full. */
  ctx_shift?: boolean;
  cache_prompt?: boolean;
  n_cache_reuse?: number;
  id_slot?: number;
  session_load?: string;
  session_save?: string;
  seed_position?: number;
  n_probs?: number;
  post_sampling_probs?: boolean;
  prompt_logprobs?: number;
  /** Changes the logits before each token is chosen, in place: `tokens` are all tokens so far. It must not be async. The array of
   *  logits is used again for the next token. What it throws ends the request. Only in the main thread. */
  logitsProcessor?: (tokens: Int32Array, logits: Float32Array) => void;
  /** `true` is refused: `logitsProcessor` sets it. */
  logits_callback?: false;
  return_tokens?: boolean;
  return_progress?: boolean;
  timings_per_token?: boolean;
  response_fields?: string[];
  tag?: unknown;
  stream?: boolean;
  stream_options?: { include_usage?: boolean; include_obfuscation?: boolean };
  model?: string;
  n_ctx?: number;
  prediction?: { type: 'content'; content: string | TextPart[] } | null;
  speculative?: boolean | Speculative;
  temperature?: number | null;
  temp?: number;
  dynatemp_range?: number;
  dynatemp_exponent?: number;
  top_k?: number;
  top_p?: number | null;
  min_p?: number;
  top_n_sigma?: number;
  tfs_z?: number;
  typical_p?: number;
  xtc_probability?: number;
  xtc_threshold?: number;
  adaptive_target?: number;
  adaptive_decay?: number;
  dry_multiplier?: number;
  dry_base?: number;
  dry_allowed_length?: number;
  dry_penalty_last_n?: number;
  dry_sequence_breakers?: string[];
  repeat_last_n?: number;
  repeat_penalty?: number;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  penalize_nl?: boolean;
  mirostat?: number;
  mirostat_tau?: number;
  mirostat_eta?: number;
  samplers?: string | string[];
  min_keep?: number;
  __debug?: boolean;
}

/** A token with its probability, and the most probable ones in its place. */
export interface TokenProbability {
  id: number;
  token: string;
  bytes: number[];
  logprob?: number;
  prob?: number;
  top_logprobs?: Array<{ id: number; token: string; bytes: number[]; logprob: number }>;
  top_probs?: Array<{ id: number; token: string; bytes: number[]; prob: number }>;
  content: string;
  probs: Array<{ tok_str: string; prob: number }>;
}

export interface Timings {
  prompt_n: number;
  prompt_ms: number;
  prompt_per_token_ms: number;
  prompt_per_second: number;
  predicted_n: number;
  predicted_ms: number;
  predicted_per_token_ms: number;
  predicted_per_second: number;
  cache_n: number;
  preempted_n: number;
  begun_n: number;
  deadline_missed_ms?: number;
  draft_n?: number;
  draft_n_accepted?: number;
}

export interface PromptStats {
  n_ctx: number;
  total_prompt_tokens?: number;
  truncated?: boolean;
  n_past?: number;
  n_cached?: number;
  n_to_eval?: number;
  dropped_messages?: number;
  cached?: string;
  to_eval?: string;
  pending?: boolean;
}

/** A piece of a chat's answer: all pieces put together are its `message`. */
export interface Delta {
  role?: 'assistant';
  content?: string;
  reasoning_content?: string;
  tool_calls?: Array<{ index: number; id?: string; type?: 'function'; function: { name?: string; arguments?: string } }>;
  /** With `functions`: OpenAI's older form of the first call. */
  function_call?: { name?: string; arguments?: string };
}

/** Log-probabilities in OpenAI's form. */
export interface Logprobs {
  content: Array<{
    token: string;
    logprob: number;
    bytes: number[];
    top_logprobs: Array<{ token: string; logprob: number; bytes: number[] }>;
  }>;
}

/** More of a completion. */
export interface Update {
  content: string;
  stop: false;
  id: number;
  index?: number;
  tokens?: number[];
  sources?: string[];
  completion_probabilities?: TokenProbability[];
  timings?: Timings;
  prompt_progress?: { total: number; cache: number; processed: number; time_ms: number };
  /** The new part of `message`, if the request has `messages`; often empty. */
  delta?: Delta;
  logprobs?: Logprobs;
  tag?: unknown;
}

/** The statistics of speculation. */
export interface SpeculationStatistics {
  type: string;
  verify: Verify | null;
  n_drafted: number;
  n_accepted: number;
  accept_rate: number;
  n_steps: number;
  tokens_per_step: number;
  accepted_per_position: number[];
  by_type: { [drafter: string]: { n_drafted: number; n_accepted: number } };
  t_draft_ms: number;
  t_verify_ms: number;
  n_max_final: number;
  disabled?: string;
  first_difference?: number | null;
  first_difference_logit_gap?: number | null;
  compare_skipped?: string;
}

/** A whole completion: the final response, with all its text in `content`. */
export interface Completion {
  success: boolean;
  status: number;
  content: string;
  stop: true;
  id: number;
  id_slot: number | null;
  index?: number;
  model: string;
  stop_type: 'eos' | 'word' | 'limit' | 'timeout' | 'cancelled' | 'error';
  stopped_eos: boolean;
  stopped_word: boolean;
  stopped_limit: boolean;
  stopping_word: string;
  truncated: boolean;
  tokens_predicted: number;
  tokens_evaluated: number;
  tokens_cached: number;
  timings: Timings;
  prompt_stats: PromptStats;
  /** All settings as used: a request for the same completion. */
  generation_settings: Request;
  prompt?: Prompt;
  speculative?: SpeculationStatistics;
  tokens?: number[];
  sources?: string[];
  completion_probabilities?: TokenProbability[];
  /** With `prompt_logprobs`: the prompt's tokens. Nothing predicts the first one. */
  prompt_logprobs?: Array<{ id: number; token: string; bytes: number[]; logprob: number | null;
    top_logprobs: Array<{ id: number; token: string; bytes: number[]; logprob: number }> }>;
  session_load?: object;
  session_save?: object;
  message?: AssistantMessage;
  finish_reason?: 'stop' | 'length' | 'tool_calls' | 'function_call' | null;
  reasoning_format?: 'auto' | 'none' | 'deepseek';
  logprobs?: Logprobs;
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    total_tokens: number;
    prompt_tokens_details?: { cached_tokens: number };
    completion_tokens_details?: { accepted_prediction_tokens: number; rejected_prediction_tokens: number };
  };
  warnings?: string[];
  tag?: unknown;
}

export interface Status {
  success: boolean;
  state: 'uninitialized' | 'loading' | 'ready' | 'failed';
  /** 1 ready, 0 not yet, -1 failed. */
  load_state: -1 | 0 | 1;
  /** The same under the old server's name. */
  init_success: -1 | 0 | 1;
  /** How far the load is, 0 to 1: by the bytes of the files that were read, then by the steps of the warm-up. */
  progress: number;
  /** Why the last load failed, with its code, its number, and the file that does not exist or may not be read, if that is why. */
  error: string | null;
  code: string | null;
  status: number | null;
  missing_file: string | null;
  denied_file: string | null;
  model: string;
  model_alias: string;
  model_draft: string;
  model_description: string | null;
  model_size: number;
  model_n_params: number;
  n_ctx: number;
  n_ctx_train: number;
  n_rollback: number | null;
  n_parallel: number;
  slots: Array<{ id: number; state: string; request_id: number | null; n_past: number }>;
  queue: number;
  queue_order: number[];
  conversations: { n: number; bytes: number };
  vocab_only: boolean;
  draft: { [key: string]: unknown } | null;
  attention: { [key: string]: unknown } | null;
  mmproj: { path: string; weights: 'file' | 'q8_0'; vision: boolean; audio: boolean; n_embd: number; non_causal: boolean } | null;
  self_check: { known: boolean; cache_prompt: boolean; speculative: boolean } | null;
  n_threads_now: number;
  paused: boolean;
  pending_panel_bytes: number;
  cpu: { [key: string]: unknown } | null;
  devices: Array<Device & { target: DeviceUse | null; draft: DeviceUse | null }>;
  fit: {
    devices: Array<{ name: string; limit: number; asked: number | null; needed: number | null }>;
    n_cpu_moe: number; n_gpu_layers: number; n_gpu_layers_draft: number | null; n_ctx: number; reduced: boolean; fits: boolean } | null;
  lookups: Array<{ function: string; step: string; progress: number }>;
  system_info: string | null;
  warnings: string[];
  llama_cpp: string;
  version: string;
}

/** A model's layers and bytes on a device. */
export interface DeviceUse {
  n_layers: number;
  output: boolean;
  weights: number;
  kv_cache: number;
  compute: number;
}

export interface Options {
  /** Cancels it; what was awaited is then rejected with the signal's reason. */
  signal?: AbortSignal;
}

export interface LoadOptions extends Options {
  /** Gets how far the load is, 0 to 1. The load waits for a promise that it returns, and fails with what it throws. */
  onProgress?: (progress: number) => unknown;
}

/** A failure that the library reports. */
export class ForedraftError extends Error {
  /** A word of the library's closed list: `invalid_request`, `not_initialized`, `queue_full`, ... Where a file does not exist it is
   *  `ENOENT`, as in Node's own errors, and the library's word is in `answer`. */
  readonly code: string;
  /** The file that does not exist, with the system's number, if that is why. */
  readonly path?: string;
  readonly errno?: number;
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
  /** The statistics of the prompt, once the request has begun. */
  readonly promptStats: PromptStats | PromptStats[] | undefined;
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
  /** Cancels it, at the end of the block of `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** The metadata of a model's file. */
export interface ModelInfo {
  description: string;
  size: number;
  n_params: number;
  n_ctx_train: number;
  n_embd: number;
  n_layer: number;
  n_vocab: number;
  vocab_type: string;
  bos: number | null;
  eos: number | null;
  eot: number | null;
  newline: number | null;
  /** All tokens that end a completion. */
  eog: number[];
  add_bos: boolean;
  add_eos: boolean;
  chat_template: string | null;
  metadata: { [key: string]: string };
}

export interface TemplateOptions {
  add_generation_prompt?: boolean;
  chat_template?: string;
  chat_template_kwargs?: { [key: string]: unknown };
  tools?: object[];
}

/** A conversation of an engine: where its state is, and how long it is. */
export interface ConversationInfo {
  conversation: string;
  place: 'slot' | 'preempted' | 'memory' | 'disk';
  id_slot: number | null;
  n_tokens: number;
  n_turns: number;
  bytes: number;
  pinned: boolean;
  running: boolean;
}

export interface LookupCacheRequest {
  action: 'load' | 'save' | 'merge' | 'clear' | 'stats' | 'update' | 'draft';
  cache?: 'static' | 'dynamic';
  filename?: string;
  tokens?: number[];
  n_new?: number;
  n_draft?: number;
  ngram_min?: number;
  ngram_max?: number;
}

/** The text of `lookupCreate` and `lookupStats`: one of these. */
export type LookupText = { text: string } | { file: string } | { tokens: number[] };

/** A question of `decide`: the best of some options, a place among 2 to 10 levels, or how probable it is that a statement holds. */
export type Question =
  | { type: 'choice'; instructions: unknown; criteria: Record<string, unknown> }
  | { type: 'score'; instructions: unknown; criteria: readonly unknown[] }
  | { type: 'noul'; instructions: unknown; criteria?: { true?: unknown; false?: unknown } | null };

/** The answer to a question. `confidence`: 0 as good as a guess, 1 certain. */
export type AnswerTo<Q extends Question> =
  Q extends { type: 'choice' }
    ? { type: 'choice'; choice: keyof Q['criteria'] & string; probabilities: { [Name in keyof Q['criteria'] & string]: number }; confidence: number }
    : Q extends { type: 'score' }
      ? { type: 'score'; score: number; legend: Record<string, unknown>; probabilities: Record<string, number>; confidence: number }
      : { type: 'noul'; noul: number };

export type DecisionOptions = Pick<Request, 'messages' | 'prompt' | 'chat_template' | 'chat_template_kwargs' | 'on_overflow' | 'timeout_ms' | 'id_slot' | 'cache_prompt' | 'lora' | 'tag'>
  & { temperatures?: { choice?: number; score?: number; noul?: number } };

/** Models and the threads that run them. Engines are independent of each other. */
/** Downloads `owner/name[@revision][:quant]`, `owner/name/file.gguf` or an address into Hugging Face's cache, or finds it there. The paths are
 *  keys of a load. `beside`: the files beside the model that are downloaded, too; all by default. Without a quantization it takes Q4_K_M, else
 *  Q8_0, else the first model, as llama.cpp does. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are obeyed. */
export function download(reference: string, options?: DownloadOptions): Promise<{ model: string; model_draft?: string; mmproj?: string }>;

export interface DownloadOptions extends Options {
  beside?: Array<'model_draft' | 'mmproj'>;
  /** Is told the share of a file that is there, 0 to 1, its name and its size in bytes. */
  onProgress?: (done: number, file: string, size: number) => unknown;
}

export class Engine {
  /** An engine without a model: `load` loads one. */
  constructor();
  static load(config: string | Config, options?: LoadOptions): Promise<Engine>;
  /** Loads models in place of what is loaded. */
  load(config: string | Config, options?: LoadOptions): Promise<void>;
  unload(): Promise<void>;
  /** Lets the engine's threads sleep, also in the middle of a decode, until as many calls of `resume` have followed. Returns at once.
   *  Requests wait meanwhile; they can be cancelled, and the engine can be closed. */
  pause(): void;
  /** Ends a pause. After the last one the threads go on where they were. */
  resume(): void;
  /** Ends what runs, and the engine with it. The garbage collector does so with an engine that was dropped. */
  close(): Promise<void>;
  readonly closed: boolean;
  /** Closes it, at the end of the block of `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
  status(): Status;
  /** A completion as it is generated, for `for await`. A string is a prompt, whatever it begins with. */
  stream(request: string | Request, options?: Options): Stream;
  /** A whole completion. */
  complete(request: string | Request, options?: Options): Promise<Completion>;
  /** The answer to a conversation. */
  chat(messages: GivenMessage[], request?: Request, options?: Options): Promise<Completion & { message: AssistantMessage }>;
  /** Prepares a request that may come: its `conversation` is brought to its prompt while no request runs, and with `begin` the answer is
   *  begun. The next request of the conversation takes over what fits. Returns at once, with the id of the preparation. */
  prepare(request: Request & { begin?: boolean }): Promise<number>;
  /** The answers to questions about a state, by their names. Each has the bits that it has alone. `messages` or `prompt` of the options stand
   *  for a state that is null. */
  decide<Q extends Record<string, Question>>(state: unknown, questions: Q, options?: DecisionOptions): Promise<{ [Name in keyof Q]: AnswerTo<Q[Name]> }>;
  tokenize(text: string, options?: { add_special?: boolean; parse_special?: boolean }): Promise<number[]>;
  detokenize(tokens: Iterable<number>, options?: { special?: boolean }): Promise<string>;
  /** The same on this thread, for short texts: the event loop waits meanwhile. */
  tokenizeSync(text: string, options?: { add_special?: boolean; parse_special?: boolean }): number[];
  detokenizeSync(tokens: Iterable<number>, options?: { special?: boolean }): string;
  /** The metadata of the target's file, or of the draft model's. */
  modelInfo(options?: { model?: 'target' | 'draft' }): Promise<ModelInfo>;
  applyTemplate(messages: GivenMessage[], options?: TemplateOptions): Promise<string>;
  embed(content: string, options?: { embd_normalize?: number; truncate?: boolean }): Promise<number[]>;
  /** The embedding of each token of a text. */
  embedTokens(content: string, options?: { embd_normalize?: number; truncate?: boolean }): Promise<number[][]>;
  /** The embedding of each text, as `embed` would give it alone. They are computed together, which takes less time. */
  embedMany(texts: Iterable<string>, options?: { embd_normalize?: number; truncate?: boolean }): Promise<number[][]>;
  /** How well each document answers a query, the best first. The model must have a classifier, and be loaded with `reranking`. */
  rerank(query: string, documents: Iterable<string>, options?: { top_n?: number; truncate?: boolean }):
    Promise<Array<{ index: number; relevance_score: number }>>;
  sessionSave(filename: string, options?: { id_slot?: number; timeout_ms?: number }): Promise<Record<string, unknown>>;
  sessionLoad(filename: string, options?: { id_slot?: number; timeout_ms?: number }): Promise<Record<string, unknown>>;
  sessionErase(options?: { id_slot?: number; timeout_ms?: number }): Promise<Record<string, unknown>>;
  /** The conversations that requests have by name, in the order of their names. */
  conversations(): Promise<ConversationInfo[]>;
  /** Does something with a conversation; `fork` needs `to`, `rewind` either `turn` or `token`, `save` and `load` `filename`. What it, or the fork, is afterwards. */
  conversation(action: 'drop' | 'fork' | 'pin' | 'unpin' | 'rewind' | 'save' | 'load', conversation: string,
    options?: { to?: string; turn?: number; token?: number; filename?: string }): Promise<ConversationInfo>;
  lookupCache(request: LookupCacheRequest): Promise<Record<string, unknown>>;
  lookupCreate(request: LookupText & { output: string; ngram_min?: number; ngram_max?: number }): Promise<Record<string, unknown>>;
  lookupMerge(request: { inputs: string[]; output: string }): Promise<Record<string, unknown>>;
  lookupStats(request: LookupText & { n_draft?: number; n_ctx?: number; lookup_cache_static?: string; lookup_cache_dynamic?: string }): Promise<Record<string, unknown>>;
}

/** A device that models can be computed on. */
export interface Device {
  /** As a load's `devices` takes it. */
  name: string;
  description: string;
  type: string;
  /** In bytes. */
  memory_free: number;
  memory_total: number;
}

/**
 * What a load can use: devices, the modules of GPUs and why one is not used, and the processor. Can be called before any load. The first call
 * starts the backends, which takes as long as a GPU's driver needs.
 */
export function devices(): {
  devices: Device[];
  modules: Array<{ path: string; found: boolean; loaded: boolean; error: string | null }>;
  cpu: { level: string; levels: string[]; cores: number; memory_total: number; memory_free: number };
};

/** The library's version. */
export function version(): string;
