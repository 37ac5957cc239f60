// A program that uses the package's types: tsc accepts it (it is never run). Each line after @ts-expect-error must be an error.
import { Engine, download, ForedraftError, Stream, picture, sound, type AssistantMessage, type Completion, type Config, type Message, type Request, type Update } from 'foredraft';

const config: Config = { model: 'model.gguf', model_draft: { fd: 5, offset: 4096 }, n_ctx: 4096, flash_attn: 'on', speculative: { n_max: 8 } };

export async function chat(): Promise<string> {
  await using engine = await Engine.load(config, { onProgress: progress => console.log(progress.toFixed(2)) });
  const messages: Message[] = [{ role: 'user', content: 'Hello', name: 'Zoë' }];
  await using stream: Stream = engine.stream({ messages, n_predict: 10, stop: ['\n'], speculative: { verify: 'match', adaptive: 'heuristic' } });
  for await (const update of stream) {
    const { content, tokens = [] }: Update = update;
    console.log(content, tokens.length);
  }
  const completion: Completion = stream.completion;
  const request: Request = completion.generation_settings;
  await engine.complete({ messages, logitsProcessor: (tokens, logits) => { logits[tokens[0]!] = -Infinity; } });
  const tokens: number[] = await engine.tokenize((await engine.complete('Hello')).content);
  const same: string = engine.detokenizeSync(engine.tokenizeSync('Hello', { add_special: false }), { special: true });
  return `${await engine.detokenize(tokens)} ${same} ${request.seed}` + (completion.speculative?.accept_rate ?? 0).toFixed(2);
}

export async function prepared(engine: Engine): Promise<number> {
  return engine.prepare({ prompt: 'a', conversation: 'b', begin: true });
}

export async function decided(engine: Engine): Promise<number> {
  const answers = await engine.decide({ mail: 'Where is my parcel?' }, {
    team: { type: 'choice', instructions: 'Which team?', criteria: { billing: 'money', shipping: null } },
    urgency: { type: 'score', instructions: 'How urgent?', criteria: ['later', 'now'] },
    angry: { type: 'noul', instructions: 'The customer is angry.' },
  }, { temperatures: { choice: 1.5 } });
  const team: 'billing' | 'shipping' = answers.team.choice;
  // @ts-expect-error
  const other: 'legal' = answers.team.choice;
  return answers.team.probabilities[team] + answers.urgency.score + answers.angry.noul + other.length;
}

/** The guide's loop over calls. */
export async function calls(engine: Engine, tools: object[], functions: Record<string, (given: { city: string }) => string>): Promise<Message[]> {
  const messages: Message[] = [{ role: 'user', content: 'How is the weather in Oslo?' }];
  const { message } = await engine.chat(messages, { tools, tool_choice: 'required', n_predict: 100 });
  messages.push(message);
  for (const call of message.tool_calls ?? []) {
    const content = functions[call.function.name]!(JSON.parse(call.function.arguments));
    messages.push({ role: 'tool', tool_call_id: call.id, name: call.function.name, content });
  }
  const answer: AssistantMessage = (await engine.chat(messages, { tools, tool_choice: 'none' })).message;
  const text: string = answer.content;
  messages.push({ role: 'assistant', content: null, refusal: null, tool_calls: message.tool_calls });
  await engine.chat(messages, { tools, tool_choice: { type: 'allowed_tools', allowed_tools: { mode: 'auto', tools: [{ type: 'function', function: { name: 'look' } }] } } });
  console.log(text.length, answer.reasoning_content?.length);
  return [...messages, answer];
}

/** Roles and contents that are no literals, and keys that only a template knows. */
export async function loose(engine: Engine, role: string): Promise<void> {
  const messages = [{ role, content: 'Hello', mood: 'sad' }];
  await engine.chat(messages, { n_predict: 1 });
  await engine.applyTemplate([{ role: 'user', content: [{ type: 'text', text: 'Hello' }], mood: 'sad' }]);
  // @ts-expect-error
  const message: Message = { role: 'usr', content: 'Hello' };
  console.log(message);
}

export async function misspelt(engine: Engine): Promise<void> {
  // @ts-expect-error
  await engine.complete({ prompt: 'Once', n_predcit: 40 });
  // @ts-expect-error
  engine.stream({ prompt: 'Once', temperature: 'hot' });
  // @ts-expect-error
  await engine.chat([{ role: 'user', content: 'Hello' }], { top_kk: 1 });
  // @ts-expect-error
  await engine.chat([], { tool_choice: { type: 'allowed_tools', allowed_tools: { mode: 'any', tools: [] } } });
  // @ts-expect-error
  await engine.complete({ prompt: 'Once', speculative: { n_mx: 3 } });
  // @ts-expect-error
  await engine.complete({ prompt: 'Once', speculative: { verify: 'hope' } });
  // @ts-expect-error
  await engine.complete({ prompt: 'Once', logitsProcessor: (tokens: string[]) => console.log(tokens) });
  // @ts-expect-error
  await Engine.load({ model: 'model.gguf', n_ctxx: 512 });
  // @ts-expect-error
  await Engine.load({ model: 'model.gguf', flash_attn: 'maybe' });
  // @ts-expect-error
  await engine.applyTemplate([], { add_generation_promt: true });
  // @ts-expect-error
  console.log((await engine.complete('Once')).tokens_predcited);
  // @ts-expect-error
  await engine.lookupCache({ action: 'forget' });
}

export const seen: Message = { role: 'user', content: [picture(new Uint8Array(12), 2, 2), picture(Buffer.alloc(9)), sound(new Float32Array(9), 16000), sound(Buffer.alloc(9))] };
export const heard: Message = { role: 'user', content: [{ type: 'input_audio', input_audio: { path: 'question.flac' } }, { type: 'text', text: 'Write it down.' }] };

export const code = (error: unknown): string => error instanceof ForedraftError ? `${error.code} ${error.path ?? ''}` : 'other';

export const paths = async (): Promise<string[]> => {
  const { model, mmproj } = await download('owner/name', { beside: ['mmproj'], onProgress: (done, file) => console.log(file, done) });
  return mmproj ? [model, mmproj] : [model];
};
