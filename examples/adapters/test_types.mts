// A program that uses the adapters' types: tsc accepts it (it is never run). Each line after @ts-expect-error must be an error.
import type { AIMessageChunk } from '@langchain/core/messages';
import { embedMany, generateText } from 'ai';
import { Engine } from 'foredraft';
import { z } from 'zod';
import { embeddingModel, languageModel } from './ai_sdk.mjs';
import { ForedraftChat, ForedraftEmbeddings } from './langchain.mjs';

export async function aiSdk(engine: Engine): Promise<string> {
  const { embeddings } = await embedMany({ model: embeddingModel(engine), values: ['a fox'], providerOptions: { foredraft: { truncate: true } } });
  const { text } = await generateText({ model: languageModel(engine, 'stories'), prompt: 'Hello' });
  // @ts-expect-error
  languageModel('model.gguf');
  // @ts-expect-error
  await generateText({ model: embeddingModel(engine), prompt: 'Hello' });
  return `${text} ${embeddings[0]!.length}`;
}

export async function langChain(engine: Engine): Promise<number> {
  const chat = new ForedraftChat({ engine, request: { max_tokens: 20 }, verbose: false });
  const bound = chat.bindTools([{ type: 'function', function: { name: 'look', parameters: {} } }], { tool_choice: 'any', parallel_tool_calls: false });
  const answer: AIMessageChunk = await bound.invoke('Hello', { request: { seed: 1 } });
  const { days } = await chat.withStructuredOutput(z.object({ days: z.number() })).invoke('Hello');
  const { raw, parsed } = await chat.withStructuredOutput<{ days: number }>({ type: 'object' }, { method: 'functionCalling', includeRaw: true }).invoke('Hello');
  const vectors: number[][] = await new ForedraftEmbeddings({ engine, truncate: true }).embedDocuments([raw.text]);
  // @ts-expect-error
  new ForedraftChat({ request: {} });
  // @ts-expect-error
  new ForedraftChat({ engine, request: { max_tokns: 20 } });
  // @ts-expect-error
  chat.withStructuredOutput({}, { method: 'magic' });
  // @ts-expect-error
  new ForedraftEmbeddings({ engine, truncat: true });
  return days + parsed.days + vectors.length + (await chat.getNumTokens('Hello')) + (answer.tool_calls?.length ?? 0);
}
