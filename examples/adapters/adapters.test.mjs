// Runs the adapters of this folder on the shipped models; scripts/test-node.sh runs it.
import assert from 'node:assert/strict';
import path from 'node:path';
import test, { after } from 'node:test';
import { Engine } from 'foredraft';

const models = process.env.FOREDRAFT_MODELS;
const engine = await Engine.load({
  model: path.join(models, 'stories-target.gguf'), model_draft: path.join(models, 'stories-draft.gguf'), n_ctx: 1024, n_threads: 1, embedding: true, log_level: 'error',
});
after(() => engine.close());

const messages = [{ role: 'user', content: 'Tell me a story about a fox.' }];
const plain = { max_tokens: 24, seed: 7 };
const { message: { content: expected } } = await engine.complete({ messages, ...plain });
const schema = { type: 'object', properties: { days: { type: 'integer', minimum: 1, maximum: 9 } }, required: ['days'], additionalProperties: false };

test('the AI SDK generates, streams, calls tools, makes objects and embeds', async () => {
  const { generateText, streamText, tool, jsonSchema, embedMany, Output, stepCountIs } = await import('ai');
  const { languageModel, embeddingModel } = await import('./ai_sdk.mjs');
  const model = languageModel(engine);
  const request = { model, messages, maxOutputTokens: plain.max_tokens, seed: plain.seed };
  const whole = await generateText(request);
  assert.equal(whole.text, expected);
  assert.deepEqual([whole.finishReason, whole.usage.outputTokens], ['length', 24]);
  const stream = streamText(request);
  let text = '';
  for await (const part of stream.textStream) text += part;
  assert.equal(text, expected);
  assert.equal(await stream.finishReason, 'length');

  let days;
  const tools = { weather: tool({ inputSchema: jsonSchema(schema), execute: async input => { days = input.days; return { sky: 'clear' }; } }) };
  const steps = { ...request, tools, maxOutputTokens: 100, stopWhen: stepCountIs(2), prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? 'none' : 'required' }) };
  const called = await generateText(steps);
  assert.ok(days >= 1 && days <= 9 && called.steps.length === 2 && called.steps[0].finishReason === 'tool-calls');
  assert.equal(called.steps[0].toolResults[0].output.sky, 'clear');
  const inputs = [];
  for await (const part of streamText({ ...steps, stopWhen: stepCountIs(1) }).fullStream) if (part.type === 'tool-call') inputs.push(part.input.days);
  assert.ok(inputs.length >= 1 && inputs.every(Number.isInteger));

  const { output } = await generateText({ ...request, maxOutputTokens: 100, output: Output.object({ schema: jsonSchema(schema) }) });
  assert.ok(Number.isInteger(output.days));
  const { embeddings } = await embedMany({ model: embeddingModel(engine), values: ['a fox', 'a crow'] });
  assert.deepEqual(embeddings, await engine.embedMany(['a fox', 'a crow']));

  const abort = new AbortController();
  const endless = streamText({ model, prompt: 'Once', abortSignal: abort.signal, providerOptions: { foredraft: { ignore_eos: true, n_predict: -1, ctx_shift: true } } });
  for await (const _ of endless.textStream) abort.abort();
  for (const end = Date.now() + 60_000; engine.status().slots.some(slot => slot.request_id !== null);) {
    assert.ok(Date.now() < end, 'the request was not cancelled');
    await new Promise(resolve => setTimeout(resolve, 5));
  }
});

test('LangChain.js generates, streams, calls tools, makes objects and embeds', async () => {
  const { ForedraftChat, ForedraftEmbeddings } = await import('./langchain.mjs');
  const { HumanMessage, ToolMessage, concat } = await import('@langchain/core/messages').then(async all => ({ ...all, ...await import('@langchain/core/utils/stream') }));
  const chat = new ForedraftChat({ engine, request: plain });
  const question = new HumanMessage(messages[0].content);
  const whole = await chat.invoke([question]);
  assert.equal(whole.text, expected);
  assert.equal(whole.usage_metadata.output_tokens, 24);
  let sum;
  for await (const chunk of await chat.stream([question])) sum = sum ? concat(sum, chunk) : chunk;
  assert.deepEqual([sum.text, sum.response_metadata.finish_reason], [expected, 'length']);

  const weather = { type: 'function', function: { name: 'weather', description: 'The weather', parameters: schema } };
  const bound = new ForedraftChat({ engine, request: { ...plain, max_tokens: 100 } }).bindTools([weather], { tool_choice: 'any' });
  const call = await bound.invoke([question]);
  assert.ok(call.tool_calls[0].name === 'weather' && Number.isInteger(call.tool_calls[0].args.days));
  let calls;
  for await (const chunk of await bound.stream([question])) calls = calls ? concat(calls, chunk) : chunk;
  assert.deepEqual(calls.tool_calls[0].args, call.tool_calls[0].args);
  const answered = await chat.invoke([question, call, new ToolMessage({ content: 'clear', tool_call_id: call.tool_calls[0].id })]);
  assert.ok(answered.text.length > 0);

  const vectors = await new ForedraftEmbeddings({ engine }).embedDocuments(['a fox', 'a crow']);
  assert.deepEqual(vectors, await engine.embedMany(['a fox', 'a crow']));
});

/** A call or an object with this property has more tokens than the requests below allow. */
const long = { type: 'object', properties: { text: { type: 'string', minLength: 500 } }, required: ['text'] };

test('LangChain.js gets a call that the limit cut as an invalid one', async () => {
  const { ForedraftChat } = await import('./langchain.mjs');
  const chat = new ForedraftChat({ engine, request: { ...plain, max_tokens: 60 } });
  const cut = await chat.bindTools([{ type: 'function', function: { name: 'tell', parameters: long } }], { tool_choice: 'tell' }).invoke(messages[0].content);
  assert.deepEqual([cut.tool_calls, cut.response_metadata.finish_reason], [[], 'length']);
  const [call] = cut.invalid_tool_calls;
  assert.ok(call.name === 'tell' && call.args.startsWith('{') && call.id && call.error);
});

test('LangChain.js makes objects by each method, of schemas of JSON and of zod, and none of a cut answer', async () => {
  const { ForedraftChat } = await import('./langchain.mjs');
  const { z } = await import('zod');
  const { content } = messages[0];
  // (A toy model that sees a schema repeats it.)
  const chat = new ForedraftChat({ engine, request: { ...plain, max_tokens: 100, schema_in_prompt: false } });
  for (const method of [undefined, 'jsonSchema', 'functionCalling']) {
    const { raw, parsed } = await chat.withStructuredOutput({ title: 'forecast', ...schema }, { method, includeRaw: true }).invoke(content);
    assert.deepEqual(Object.keys(parsed), ['days']);
    assert.ok(Number.isInteger(parsed.days) && raw.tool_calls.length === (method === 'functionCalling' ? 1 : 0));
    const sky = await chat.withStructuredOutput(z.object({ sky: z.enum(['clear', 'grey']) }), { method, name: 'weather' }).invoke(content);
    assert.ok(['clear', 'grey'].includes(sky.sky));
    await assert.rejects(chat.withStructuredOutput(long, { method }).invoke(content, { request: { max_tokens: 60 } }), /cut by the limit/);
  }
  assert.equal(typeof await chat.withStructuredOutput({}, { method: 'jsonMode' }).invoke(content), 'object');
  assert.throws(() => chat.withStructuredOutput(schema, { method: 'magic' }), /method: expected/);
});

test('LangChain.js counts tokens by the model, without the internet', async () => {
  const { ForedraftChat } = await import('./langchain.mjs');
  const { fetch } = globalThis;
  let asks = false;
  globalThis.fetch = async () => { asks = true; throw new Error('no internet'); };
  try {
    const chat = new ForedraftChat({ engine });
    const text = 'The fox, the crow and the cheese.';
    const count = (await engine.tokenize(text, { add_special: false })).length;
    assert.deepEqual(await Promise.all([text, [{ type: 'text', text }]].map(content => chat.getNumTokens(content))), [count, count]);
    assert.equal(asks, false);
  } finally {
    globalThis.fetch = fetch;
  }
});

test('embeddings of both cut what is too long, where they are told to', async () => {
  const { ForedraftEmbeddings } = await import('./langchain.mjs');
  const { embed } = await import('ai');
  const { embeddingModel } = await import('./ai_sdk.mjs');
  const value = 'The fox saw a crow. '.repeat(1000);
  const expected = await engine.embed(value, { truncate: true });
  const cutting = new ForedraftEmbeddings({ engine, truncate: true });
  assert.deepEqual([await cutting.embedQuery(value), ...await cutting.embedDocuments([value])], [expected, expected]);
  await assert.rejects(new ForedraftEmbeddings({ engine }).embedQuery(value), { code: 'context_full' });
  const model = embeddingModel(engine);
  assert.deepEqual((await embed({ model, value, providerOptions: { foredraft: { truncate: true } } })).embedding, expected);
  await assert.rejects(embed({ model, value, maxRetries: 0 }), { code: 'context_full' });
});
