// ANCHOR: hello
import { Engine } from 'foredraft';

const engine = await Engine.load({ model: 'models/stories-target.gguf', model_draft: 'models/stories-draft.gguf' });
const messages = [{ role: 'user', content: 'Tell me a story about a fox.' }];
for await (const { content } of engine.stream({ messages, n_predict: 60, seed: 7 })) process.stdout.write(content);
await engine.close();
// ANCHOR_END: hello
