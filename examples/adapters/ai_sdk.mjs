// Models for the AI SDK of Vercel (package `ai`, version 6), in this process:
//
//   import { generateText } from 'ai';
//   import { Engine } from 'foredraft';
//   import { languageModel } from './ai_sdk.mjs';
//
//   const engine = await Engine.load({ model: 'target.gguf', model_draft: 'draft.gguf' });
//   const { text } = await generateText({ model: languageModel(engine), prompt: 'Tell me a story.' });
//
// Copy the file into your project: it needs no package but the two above.

/** The text of parts; the engine reads nothing else. */
function textOf(parts) {
  return parts.map(part => {
    if (part.type === 'text') return part.text;
    if (part.type === 'reasoning' || part.type === 'tool-call') return '';
    throw new Error(`the engine reads text only, got a part of the type ${part.type}`);
  }).join('');
}

/** The result of a tool as a text. */
function resultText({ output }) {
  switch (output.type) {
    case 'text': case 'error-text': return output.value;
    case 'execution-denied': return output.reason ?? 'the execution was denied';
    case 'content': return textOf(output.value);
    default: return JSON.stringify(output.value);
  }
}

/** The AI SDK's messages as the engine's. */
function messagesOf(prompt) {
  return prompt.flatMap(({ role, content }) => {
    if (role === 'system') return [{ role, content }];
    if (role === 'tool') {
      const results = content.filter(part => part.type === 'tool-result');
      return results.map(part => ({ role, tool_call_id: part.toolCallId, name: part.toolName, content: resultText(part) }));
    }
    const message = { role, content: textOf(content) };
    if (role === 'user') return [message];
    const reasoning = content.filter(part => part.type === 'reasoning').map(part => part.text).join('');
    if (reasoning) message.reasoning_content = reasoning;
    const calls = content.filter(part => part.type === 'tool-call');
    if (calls.length) {
      message.tool_calls = calls.map(part => (
        { id: part.toolCallId, type: 'function', function: { name: part.toolName, arguments: JSON.stringify(part.input) } }));
    }
    return [message];
  });
}

/** The engine's request, and what it cannot do of the call. */
function requestOf(options) {
  const request = {
    messages: messagesOf(options.prompt), max_tokens: options.maxOutputTokens, temperature: options.temperature, top_p: options.topP,
    top_k: options.topK, presence_penalty: options.presencePenalty, frequency_penalty: options.frequencyPenalty, seed: options.seed,
    stop: options.stopSequences, ...options.providerOptions?.foredraft,
  };
  const warnings = [];
  const tools = (options.tools ?? []).filter(tool => {
    if (tool.type !== 'function') warnings.push({ type: 'unsupported', feature: `the tool ${tool.name} of a provider` });
    return tool.type === 'function';
  });
  if (tools.length) {
    request.tools = tools.map(({ name, description, inputSchema }) => ({ type: 'function', function: { name, description, parameters: inputSchema } }));
    const { toolChoice } = options;
    request.tool_choice = toolChoice?.type === 'tool' ? toolChoice.toolName : toolChoice?.type;
  }
  const format = options.responseFormat;
  if (format?.type === 'json') request.response_format = { type: 'json_object', schema: format.schema };
  return { request: Object.fromEntries(Object.entries(request).filter(([, value]) => value !== undefined)), warnings };
}

function usageOf({ prompt_tokens, completion_tokens, prompt_tokens_details }) {
  const cacheRead = prompt_tokens_details?.cached_tokens ?? 0;
  return {
    inputTokens: { total: prompt_tokens, noCache: prompt_tokens - cacheRead, cacheRead, cacheWrite: undefined },
    outputTokens: { total: completion_tokens, text: undefined, reasoning: undefined },
  };
}

const finishOf = raw => ({ unified: raw === 'tool_calls' ? 'tool-calls' : raw, raw });

const callOf = call => ({ type: 'tool-call', toolCallId: call.id, toolName: call.function.name, input: call.function.arguments });

/** The parts of a stream, of the engine's updates. */
async function* partsOf(stream, warnings) {
  yield { type: 'stream-start', warnings };
  // The open part: text or reasoning, and the call whose arguments arrive.
  let open, call;
  let count = 0;
  function* close() {
    if (open) yield { type: `${open.kind}-end`, id: open.id };
    if (call) {
      yield { type: 'tool-input-end', id: call.id };
      yield callOf(call);
    }
    open = call = undefined;
  }
  function* add(kind, delta) {
    if (!delta) return;
    if (open?.kind !== kind) {
      yield* close();
      open = { kind, id: String(count++) };
      yield { type: `${kind}-start`, id: open.id };
    }
    yield { type: `${kind}-delta`, id: open.id, delta };
  }
  for await (const { delta } of stream) {
    yield* add('reasoning', delta?.reasoning_content);
    yield* add('text', delta?.content);
    for (const part of delta?.tool_calls ?? []) {
      if (part.id) {
        yield* close();
        call = { id: part.id, function: { name: part.function.name, arguments: '' } };
        yield { type: 'tool-input-start', id: call.id, toolName: call.function.name };
      }
      const text = part.function?.arguments;
      if (!text) continue;
      call.function.arguments += text;
      yield { type: 'tool-input-delta', id: call.id, delta: text };
    }
  }
  yield* close();
  const { usage, finish_reason } = stream.completion;
  yield { type: 'finish', usage: usageOf(usage), finishReason: finishOf(finish_reason) };
}

/** A language model of the AI SDK. `providerOptions.foredraft` has more keys of the engine's request. */
export function languageModel(engine, modelId = 'local') {
  return {
    specificationVersion: 'v3', provider: 'foredraft', modelId, supportedUrls: {},

    async doGenerate(options) {
      const { request, warnings } = requestOf(options);
      const { message, usage, finish_reason } = await engine.complete(request, { signal: options.abortSignal });
      const content = [];
      if (message.reasoning_content) content.push({ type: 'reasoning', text: message.reasoning_content });
      if (message.content) content.push({ type: 'text', text: message.content });
      content.push(...(message.tool_calls ?? []).map(callOf));
      return { content, warnings, usage: usageOf(usage), finishReason: finishOf(finish_reason) };
    },

    async doStream(options) {
      const { request, warnings } = requestOf(options);
      const stream = engine.stream(request, { signal: options.abortSignal });
      const parts = partsOf(stream, warnings);
      return {
        stream: new ReadableStream({
          async pull(controller) {
            try {
              const { done, value } = await parts.next();
              if (done) controller.close();
              else controller.enqueue(value);
            } catch (error) {
              controller.enqueue({ type: 'error', error });
              controller.close();
            }
          },
          cancel: () => stream.cancel(),
        }),
      };
    },
  };
}

/** An embedding model of the AI SDK. The engine must be loaded with `embedding: true`. `providerOptions.foredraft` can have `truncate`
 *  and `embd_normalize`. */
export function embeddingModel(engine, modelId = 'local') {
  return {
    specificationVersion: 'v3', provider: 'foredraft', modelId, maxEmbeddingsPerCall: undefined, supportsParallelCalls: false,

    async doEmbed({ values, providerOptions }) {
      return { embeddings: await engine.embedMany(values, providerOptions?.foredraft), warnings: [] };
    },
  };
}
