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
import { AIMessageChunk } from '@langchain/core/messages';
import { ChatGenerationChunk } from '@langchain/core/outputs';
import { convertToOpenAITool } from '@langchain/core/utils/function_calling';

const ROLES = { human: 'user', ai: 'assistant', system: 'system', tool: 'tool', developer: 'system' };

/** A message of LangChain as the engine's. */
function messageOf(message) {
  const content = typeof message.content === 'string' ? message.content : message.content.map(part => {
    if (part.type !== 'text') throw new Error(`the engine reads text only, got a part of the type ${part.type}`);
    return part.text;
  }).join('');
  const converted = { role: ROLES[message.getType()] ?? message.role, content };
  if (message.tool_call_id) converted.tool_call_id = message.tool_call_id;
  if (message.tool_calls?.length) {
    converted.tool_calls = message.tool_calls.map(({ id, name, args }) => (
      { id, type: 'function', function: { name, arguments: JSON.stringify(args) } }));
  }
  return converted;
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

  /** The engine's request of a call. */
  #requestOf(messages, { stop, tools, tool_choice, response_format, request }) {
    const choice = tool_choice === 'any' ? 'required' : tool_choice;
    const given = { stop, tools, tool_choice: choice, response_format, ...request };
    const set = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
    return { ...this.request, ...set, messages: messages.map(messageOf) };
  }

  async _generate(messages, options) {
    const { message, usage, finish_reason } = await this.engine.complete(this.#requestOf(messages, options), { signal: options.signal });
    // A chunk, because `withStructuredOutput` takes nothing else.
    const answer = new AIMessageChunk({
      content: message.content ?? '',
      additional_kwargs: message.reasoning_content ? { reasoning_content: message.reasoning_content } : {},
      tool_calls: (message.tool_calls ?? []).map(call => (
        { type: 'tool_call', id: call.id, name: call.function.name, args: JSON.parse(call.function.arguments) })),
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

/** Embeddings. The engine must be loaded with `embedding: true`. */
export class ForedraftEmbeddings extends Embeddings {
  constructor({ engine, ...fields }) {
    super(fields);
    this.engine = engine;
  }

  embedQuery(text) {
    return this.engine.embed(text);
  }

  embedDocuments(texts) {
    return this.engine.embedMany(texts);
  }
}
