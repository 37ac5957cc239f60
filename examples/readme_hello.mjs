import { Engine } from 'foredraft';

const engine = await Engine.load({ model: 'models/stories-target.gguf', model_draft: 'models/stories-draft.gguf' });
for await (const piece of engine.stream({ prompt: 'Once upon a time', n_predict: 40 })) process.stdout.write(piece.content);
await engine.close();
