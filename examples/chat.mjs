// A chat that prints each answer while it is being generated, in Node, with koffi (`npm ci` in examples/ installs it).
//   node examples/chat.mjs ["a message" [target.gguf [draft.gguf]]]
// Without a message, it reads messages from stdin, one per line, and keeps the conversation. FOREDRAFT_LIB names the library
// if it is not target/release/libforedraft.so.
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import koffi from 'koffi';

const at = path => fileURLToPath(new URL(`../${path}`, import.meta.url));
const lib = koffi.load(process.env.FOREDRAFT_LIB ?? at('target/release/libforedraft.so'));

// Strings that koffi copies and then releases with free_string.
const Owned = koffi.disposable('Owned', 'str', lib.func('void free_string(const void *text)'));

/** Throws the error in an answer. */
function checked(answer) {
  if (answer.error) throw new Error(answer.error);
  return answer;
}

/** Wraps a function of the library with JSON in and out as an async function on objects. The call runs on another thread, so that
 *  Node's main thread is not blocked. */
function json(name, ...parameters) {
  const call = promisify(lib.func(name, Owned, parameters).async);
  return async (...args) => checked(JSON.parse(await call(...args.map(arg => JSON.stringify(arg)))));
}

const init = promisify(lib.func('int32_t init(const char *config)').async);
const deinit = promisify(lib.func('void deinit(void)').async);
const pollSystemStatus = json('poll_system_status');
const speculativeCompletionInit = json('speculative_completion_init', 'str');
const speculativeCompletionPoll = json('speculative_completion_poll', 'str');

/** Yields the updates of the answer to a conversation as they arrive. The last one is the final response. */
async function* stream(messages) {
  const { id } = await speculativeCompletionInit({ messages, temperature: 0, n_predict: 200 });
  for (let finished = false; !finished;) {
    const reply = await speculativeCompletionPoll({ id, timeout_ms: 1000 });
    yield* reply.completion_updates.map(checked);
    finished = reply.finished;
  }
}

/** Sends a message, prints the answer while it arrives, and adds both to the conversation. */
async function turn(messages, message) {
  messages.push({ role: 'user', content: message });
  let text = '', final;
  for await (const update of stream(messages)) {
    process.stdout.write(update.content);
    text += update.content;
    final = update;
  }
  process.stdout.write('\n');
  const { tokens_predicted, timings, speculative } = final;
  console.error(`[${tokens_predicted} tokens, ${timings.predicted_per_second.toFixed(1)} tokens/s, ` +
    `accept_rate ${speculative.accept_rate.toFixed(2)}]`);
  messages.push({ role: 'assistant', content: text });
}

const [message, ...given] = process.argv.slice(2);
const [model, draft = ''] = given.length > 0 ? given : [at('models/stories-target.gguf'), at('models/stories-draft.gguf')];
try {
  if (await init(JSON.stringify({ model, model_draft: draft })) !== 0) {
    await pollSystemStatus(); // throws the reason
    throw new Error('init failed');
  }
  const messages = [];
  const lines = message === undefined ? createInterface({ input: process.stdin }) : [message];
  for await (const line of lines) await turn(messages, line);
} catch (error) {
  console.error(`chat: ${error.message}`);
  process.exitCode = 1;
} finally {
  await deinit();
}
