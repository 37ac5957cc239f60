// The types of langchain.mjs: copy both files into your project.
import type { Embeddings, EmbeddingsParams } from '@langchain/core/embeddings';
import type { BaseLanguageModelInput, StructuredOutputMethodOptions } from '@langchain/core/language_models/base';
import type { BaseChatModel, BaseChatModelCallOptions, BaseChatModelParams, BindToolsInput } from '@langchain/core/language_models/chat_models';
import type { AIMessageChunk, BaseMessage, MessageContent } from '@langchain/core/messages';
import type { ChatResult } from '@langchain/core/outputs';
import type { Runnable } from '@langchain/core/runnables';
import type { InteropZodType } from '@langchain/core/utils/types';
import type { Engine, Request } from 'foredraft';

export interface ForedraftChatCallOptions extends BaseChatModelCallOptions {
  tools?: Request['tools'];
  parallel_tool_calls?: Request['parallel_tool_calls'];
  response_format?: Request['response_format'];
  /** Further keys of the engine's request. */
  request?: Request;
}

export interface StructuredOutputOptions<IncludeRaw extends boolean = false> extends StructuredOutputMethodOptions<IncludeRaw> {
  /** `jsonSchema`: the answer's content; `functionCalling`: the arguments of a call; `jsonMode`: JSON of any form. */
  method?: 'jsonSchema' | 'functionCalling' | 'jsonMode';
}

/** A chat model. `request` has keys of the engine's requests, and so have the options of a call. */
export declare class ForedraftChat extends BaseChatModel<ForedraftChatCallOptions> {
  readonly engine: Engine;
  request: Request;
  constructor(fields: BaseChatModelParams & { engine: Engine; request?: Request });
  _llmType(): string;
  _generate(messages: BaseMessage[], options: this['ParsedCallOptions']): Promise<ChatResult>;
  bindTools(tools: BindToolsInput[], options?: Partial<ForedraftChatCallOptions>): Runnable<BaseLanguageModelInput, AIMessageChunk, ForedraftChatCallOptions>;
  /** The answer as an object. The engine generates nothing that the schema does not allow. */
  withStructuredOutput<Output extends Record<string, any> = Record<string, any>>(
    schema: InteropZodType<Output> | Record<string, any>, config?: StructuredOutputOptions<false>,
  ): Runnable<BaseLanguageModelInput, Output>;
  withStructuredOutput<Output extends Record<string, any> = Record<string, any>>(
    schema: InteropZodType<Output> | Record<string, any>, config: StructuredOutputOptions<true>,
  ): Runnable<BaseLanguageModelInput, { raw: BaseMessage; parsed: Output }>;
  /** The number of tokens of a text. */
  getNumTokens(content: MessageContent): Promise<number>;
}

/** Embeddings. The engine must be loaded with `embedding: true`. */
export declare class ForedraftEmbeddings extends Embeddings {
  readonly engine: Engine;
  /** A text that is too long loses its end, and is no error. */
  truncate: boolean;
  constructor(fields: EmbeddingsParams & { engine: Engine; truncate?: boolean });
  embedQuery(text: string): Promise<number[]>;
  embedDocuments(texts: string[]): Promise<number[][]>;
}
