// OpenAI's types and the package's, one assigned to the other: tsc accepts it (it is never run).
import type OpenAI from 'openai';
import type { AssistantMessage, Completion, ContentPart, Delta, Engine, Message, Request, SoundPart, Update } from 'foredraft';

type Param = OpenAI.Chat.Completions.ChatCompletionMessageParam;
type User = Extract<Message, { role: 'user' }>;
/** A message without pixels and sounds of files, which OpenAI's have not. */
type Shared = Exclude<Message, User> | (Omit<User, 'content'> & { content: string | Exclude<ContentPart, { type: 'image' } | SoundPart>[] });

/** The engine takes messages and parameters of OpenAI's client. */
export async function given(engine: Engine, messages: Param[], params: OpenAI.Chat.Completions.ChatCompletionCreateParamsNonStreaming): Promise<Completion> {
  const own: Message[] = messages;
  const request: Request = {
    messages,
    tools: params.tools,
    tool_choice: params.tool_choice as Exclude<typeof params.tool_choice, OpenAI.Chat.Completions.ChatCompletionNamedToolChoiceCustom>,
    response_format: params.response_format,
    stop: params.stop,
    logit_bias: params.logit_bias,
    prediction: params.prediction,
    parallel_tool_calls: params.parallel_tool_calls,
    max_completion_tokens: params.max_completion_tokens,
    temperature: params.temperature,
    top_p: params.top_p,
    n: params.n,
    seed: params.seed,
  };
  await engine.chat(own, { tools: params.tools });
  await engine.applyTemplate(messages, { tools: params.tools });
  return engine.complete(request);
}

/** OpenAI's types take the engine's answers. */
export function taken(own: Shared[], message: AssistantMessage, completion: Completion, update: Update): OpenAI.Chat.Completions.ChatCompletion.Choice {
  const history: Param[] = own;
  history.push(message);
  const usage: OpenAI.CompletionUsage | undefined = completion.usage;
  const delta: OpenAI.Chat.Completions.ChatCompletionChunk.Choice.Delta | undefined = update.delta;
  const calls: OpenAI.Chat.Completions.ChatCompletionMessageFunctionToolCall[] | undefined = message.tool_calls;
  const role: 'assistant' | undefined = (update.delta as Delta).role;
  console.log(usage, delta, calls, role);
  return {
    index: completion.index ?? 0, finish_reason: completion.finish_reason ?? 'stop', logprobs: { content: completion.logprobs?.content ?? null, refusal: null },
    message: { ...message, refusal: null },
  };
}
