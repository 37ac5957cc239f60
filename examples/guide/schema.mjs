import { Engine } from 'foredraft';

const engine = await Engine.load({ model: 'models/stories-target.gguf', model_draft: 'models/stories-draft.gguf' });
// ANCHOR: schema
const schema = {
  type: 'object',
  properties: { name: { type: 'string', maxLength: 12 }, age: { type: 'integer', minimum: 0, maximum: 99 } },
  required: ['name', 'age'],
};
const { content } = await engine.complete({ prompt: 'Once upon a time there was a child.', schema, n_predict: 200, temperature: 0 });
const child = JSON.parse(content);
console.log(child.name, child.age);
// ANCHOR_END: schema
await engine.close();
