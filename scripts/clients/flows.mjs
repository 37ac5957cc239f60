// The basic flows of clients in Node over the package, with the shipped models: prints a line of JSON for each client, as flows.py does.
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { Engine } from 'foredraft';

const model = path.join(process.env.FOREDRAFT_MODELS, 'stories-target.gguf');
const question = 'Tell me a story about a fox.';
const messages = [{ role: 'user', content: question }];
const schema = { type: 'object', properties: { days: { type: 'integer', minimum: 1, maximum: 9 } }, required: ['days'], additionalProperties: false };
const weather = { type: 'function', function: { name: 'weather', description: 'The weather', parameters: schema } };
const valid = ({ days }) => Number.isInteger(days) && days >= 1 && days <= 9;
const versionOf = name => JSON.parse(fs.readFileSync(path.join('node_modules', name, 'package.json'))).version;

/** How many parts of an iteration there are. */
async function count(parts) {
  let n = 0;
  for await (const _ of parts) n++;
  return n;
}

async function aiSdk(engine) {
  const { generateText, streamText, tool, jsonSchema, embedMany, Output } = await import('ai');
  const { languageModel, embeddingModel } = await import('./ai_sdk.mjs');
  const common = { model: languageModel(engine), maxOutputTokens: 100 };
  const tools = { weather: tool({ inputSchema: jsonSchema(schema) }) };
  return {
    completion: 'it has chats only',
    chat: async () => (await generateText({ ...common, messages })).text,
    stream: async () => await count(streamText({ ...common, messages }).textStream) > 3,
    'tool call': async () => valid((await generateText({ ...common, messages, tools, toolChoice: 'required' })).toolCalls[0].input),
    schema: async () => valid((await generateText({ ...common, messages, output: Output.object({ schema: jsonSchema(schema) }) })).output),
    embeddings: async () => (await embedMany({ model: embeddingModel(engine), values: ['a fox', 'a crow'] })).embeddings.length === 2,
  };
}

async function langchain(engine) {
  const { ForedraftChat, ForedraftEmbeddings } = await import('./langchain.mjs');
  const chat = new ForedraftChat({ engine, request: { max_tokens: 100 } });
  return {
    completion: 'the adapter has chats only',
    chat: async () => (await chat.invoke(question)).text,
    stream: async () => await count(await chat.stream(question)) > 3,
    'tool call': async () => valid((await chat.bindTools([weather], { tool_choice: 'any' }).invoke(question)).tool_calls[0].args),
    schema: async () => valid(await chat.withStructuredOutput({ title: 'forecast', ...schema }).invoke(question)),
    embeddings: async () => (await new ForedraftEmbeddings({ engine }).embedDocuments(['a fox', 'a crow'])).length === 2,
  };
}

/** Over HTTP, from the example. */
async function openai() {
  const { default: OpenAI } = await import('openai');
  const example = path.join(process.env.FOREDRAFT_EXAMPLES, 'openai_http.py');
  const server = spawn(process.env.PYTHON ?? 'python3', [example, model, '--port', '0', '--threads', '1', '--embeddings'], { stdio: ['ignore', 'pipe', 'ignore'] });
  const first = await new Promise(resolve => server.stdout.once('data', data => resolve(String(data))));
  const client = new OpenAI({ baseURL: /http\S+/.exec(first)[0], apiKey: 'none' });
  const create = more => client.chat.completions.create({ model: 'any', messages, max_tokens: 100, ...more });
  const format = { type: 'json_schema', json_schema: { name: 'weather', schema, strict: true } };
  return {
    completion: async () => (await client.completions.create({ model: 'any', prompt: 'Once upon a time' })).choices[0].text,
    chat: async () => (await create()).choices[0].message.content,
    stream: async () => await count(await create({ stream: true })) > 3,
    'tool call': async () => valid(JSON.parse((await create({ tools: [weather], tool_choice: 'required' })).choices[0].message.tool_calls[0].function.arguments)),
    schema: async () => valid(JSON.parse((await create({ response_format: format })).choices[0].message.content)),
    embeddings: async () => (await client.embeddings.create({ model: 'any', input: ['a fox', 'a crow'] })).data.length === 2,
    end: () => server.kill(),
  };
}

async function tried(flow) {
  if (typeof flow === 'string') return flow;
  try {
    const result = await flow();
    return result ? 'yes' : `it gave ${JSON.stringify(result)}`;
  } catch (error) {
    return `${error.name}: ${error.message}`.split('\n')[0].slice(0, 200);
  }
}

const engine = await Engine.load({ model, n_ctx: 1024, n_threads: 1, embedding: true, log_level: 'none' });
for (const [client, name, flowsOf] of [['AI SDK (Node)', 'ai', aiSdk], ['LangChain.js', '@langchain/core', langchain], ['openai (Node)', 'openai', openai]]) {
  const row = { client, version: versionOf(name) };
  const { end = () => {}, ...flows } = await flowsOf(engine);
  for (const [flow, run] of Object.entries(flows)) row[flow] = await tried(run);
  end();
  console.log(JSON.stringify(row));
}
await engine.close();
