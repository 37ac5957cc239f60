// The types of ai_sdk.mjs: copy both files into your project.
import type { EmbeddingModel, LanguageModel } from 'ai';
import type { Engine } from 'foredraft';

/** A language model of the AI SDK. `providerOptions.foredraft` has more keys of the engine's request. */
export declare function languageModel(engine: Engine, modelId?: string): Extract<LanguageModel, { specificationVersion: 'v3' }>;

/** An embedding model of the AI SDK. The engine must be loaded with `embedding: true`. `providerOptions.foredraft` can have `truncate`
 *  and `embd_normalize`. */
export declare function embeddingModel(engine: Engine, modelId?: string): Extract<EmbeddingModel, { specificationVersion: 'v3' }>;
