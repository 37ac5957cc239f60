// A chat model and embeddings for LangChain.js (package `@langchain/core`, version 1), in this process:
//
//   import { Engine } from 'foredraft';
//   import { ForedraftChat } from './langchain.mjs';
//
//   const engine = await Engine.load({ model: 'target.gguf', model_draft: 'draft.gguf' });
//   const answer = await new ForedraftChat({ engine, request: { max_tokens: 200 } }).invoke('Tell me a story.');
//
// Copy the file into your project: it needs no package but the two above.
import { Embeddings } from '@langchain/core/embeddings';
import { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { assembleStructuredOutputPipeline, createContentParser, createFunctionCallingParser } from '@langchain/core/language_models/structured_output';
import { AIMessage, AIMessageChunk } from '@langchain/core/messages';
import { OutputParserException } from '@langchain/core/output_parsers';
import { ChatGenerationChunk } from '@langchain/core/outputs';
import { RunnableLambda } from '@langchain/core/runnables';
import { convertToOpenAITool } from '@langchain/core/utils/function_calling';
import { toJsonSchema } from '@langchain/core/utils/json_schema';

const ROLES = { human: 'user', ai: 'assistant', system: 'system', tool: 'tool', developer: 'system' };

/** The text of a content; the engine reads nothing else. */
const textOf = content => typeof content === 'string' ? content : content.map(part => {
  if (part.type !== 'text') throw new Error(`the engine reads text only, got a part of the type ${part.type}`);
  return part.text;
}).join('');

/** A message of LangChain as the engine's. */
function messageOf(message) {
  const converted = { role: ROLES[message.getType()] ?? message.role, content: textOf(message.content) };
  if (message.tool_call_id) converted.tool_call_id = message.tool_call_id;
  if (message.tool_calls?.length) {
    converted.tool_calls = message.tool_calls.map(({ id, name, args }) => (
      { id, type: 'function', function: { name, arguments: JSON.stringify(args) } }));
  }
  return converted;
}

/** A call of the engine's as one of LangChain's two kinds: a limit can cut its arguments, which are no JSON then. */
function callOf({ id, function: { name, arguments: text } }) {
  try {
    return { type: 'tool_call', id, name, args: JSON.parse(text) };
  } catch (error) {
    return { type: 'invalid_tool_call', id, name, args: text, error: error.message };
  }
}

const usageOf = usage => ({ input_tokens: usage.prompt_tokens, output_tokens: usage.completion_tokens, total_tokens: usage.total_tokens });

/** A chat model. `request` has keys of the engine's requests, and so have the options of a call. */
export class ForedraftChat extends BaseChatModel {
  constructor({ engine, request = {}, ...fields }) {
    super(fields);
    this.engine = engine;
    this.request = request;
  }

  _llmType() {
    return 'foredraft';
  }

  bindTools(tools, options = {}) {
    return this.withConfig({ tools: tools.map(tool => convertToOpenAITool(tool)), ...options });
  }

  /** The answer as an object. The engine generates nothing that the schema does not allow: as the content, or with the method
   *  `functionCalling` as the arguments of a call. `jsonMode` is JSON of any form. */
  withStructuredOutput(schema, { name = 'extract', method = 'jsonSchema', includeRaw = false } = {}) {
    const json = () => toJsonSchema(schema);
    let bound, parser;
    if (method === 'functionCalling') {
      bound = this.bindTools([{ type: 'function', function: { name, parameters: json() } }], { tool_choice: name, parallel_tool_calls: false });
      parser = createFunctionCallingParser(schema, name);
    } else if (method === 'jsonSchema' || method === 'jsonMode') {
      bound = this.withConfig({ response_format: method === 'jsonMode' ? { type: 'json_object' } : { type: 'json_schema', json_schema: { name, schema: json() } } });
      parser = createContentParser(schema);
    } else {
      throw new Error(`method: expected "jsonSchema", "functionCalling" or "jsonMode", got ${JSON.stringify(method)}`);
    }
    // LangChain's parsers make an object of JSON without an end.
    const whole = RunnableLambda.from(message => {
      if (message.response_metadata.finish_reason !== 'length') return parser.invoke(message);
      throw new OutputParserException('the answer was cut by the limit of tokens or of time', message.text);
    });
    return assembleStructuredOutputPipeline(bound, whole, includeRaw, 'StructuredOutput');
  }

  /** The number of tokens of a text. */
  async getNumTokens(content) {
    return (await this.engine.tokenize(textOf(content), { add_special: false })).length;
  }

  /** The engine's request of a call. */
  #requestOf(messages, { stop, tools, tool_choice, parallel_tool_calls, response_format, request }) {
    const choice = tool_choice === 'any' ? 'required' : tool_choice;
    const given = { stop, tools, tool_choice: choice, parallel_tool_calls, response_format, ...request };
    const set = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
    return { ...this.request, ...set, messages: messages.map(messageOf) };
  }

  async _generate(messages, options) {
    const { message, usage, finish_reason } = await this.engine.complete(this.#requestOf(messages, options), { signal: options.signal });
    const calls = (message.tool_calls ?? []).map(callOf);
    const answer = new AIMessage({
      content: message.content ?? '',
      additional_kwargs: message.reasoning_content ? { reasoning_content: message.reasoning_content } : {},
      tool_calls: calls.filter(({ type }) => type === 'tool_call'), invalid_tool_calls: calls.filter(({ type }) => type !== 'tool_call'),
      usage_metadata: usageOf(usage), response_metadata: { finish_reason },
    });
    return { generations: [{ message: answer, text: answer.text }] };
  }

  async* _streamResponseChunks(messages, options, runManager) {
    const stream = this.engine.stream(this.#requestOf(messages, options), { signal: options.signal });
    for await (const { delta = {} } of stream) {
      const text = delta.content ?? '';
      const message = new AIMessageChunk({
        content: text,
        additional_kwargs: delta.reasoning_content ? { reasoning_content: delta.reasoning_content } : {},
        tool_call_chunks: (delta.tool_calls ?? []).map(call => (
          { type: 'tool_call_chunk', index: call.index, id: call.id, name: call.function?.name, args: call.function?.arguments })),
      });
      const chunk = new ChatGenerationChunk({ message, text });
      yield chunk;
      await runManager?.handleLLMNewToken(text, undefined, undefined, undefined, undefined, { chunk });
    }
    const { usage, finish_reason } = stream.completion;
    const last = new AIMessageChunk({ content: '', usage_metadata: usageOf(usage), response_metadata: { finish_reason } });
    yield new ChatGenerationChunk({ message: last, text: '' });
  }
}

/** Embeddings. The engine must be loaded with `embedding: true`. With `truncate` a text that is too long loses its end; without, it
 *  is an error. */
export class ForedraftEmbeddings extends Embeddings {
  constructor({ engine, truncate = false, ...fields }) {
    super(fields);
    this.engine = engine;
    this.truncate = truncate;
  }

  embedQuery(text) {
    return this.engine.embed(text, { truncate: this.truncate });
  }

  embedDocuments(texts) {
    return this.engine.embedMany(texts, { truncate: this.truncate });
  }
}
