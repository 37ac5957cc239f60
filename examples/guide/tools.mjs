import { Engine } from 'foredraft';

const engine = await Engine.load({ model: process.argv[2] ?? 'models/stories-target.gguf', n_ctx: 2048 });
// ANCHOR: tools
const parameters = { type: 'object', properties: { city: { enum: ['Lima', 'Oslo'] } }, required: ['city'] };
/** @type {Record<string, (given: { city: string }) => string>} */
const functions = {
  weather: ({ city }) => `12 degrees and rain in ${city}`,
  time: ({ city }) => `ten o'clock in ${city}`,
};
const tools = Object.keys(functions).map(name => (
  { type: 'function', function: { name, description: `The ${name} in a city`, parameters } }));

/** @type {import('foredraft').Message[]} */
const messages = [{ role: 'user', content: 'How is the weather in Oslo, and what time is it there?' }];
for (const name of Object.keys(functions)) {
  // A large model chooses by itself: 'auto'.
  const tool_choice = { type: 'function', function: { name } };
  const { message } = await engine.chat(messages, { tools, tool_choice, n_predict: 100 });
  messages.push(message);
  for (const call of message.tool_calls ?? []) {
    const content = functions[call.function.name](JSON.parse(call.function.arguments));
    console.log(`called ${call.function.name}: ${content}`);
    messages.push({ role: 'tool', tool_call_id: call.id, name: call.function.name, content });
  }
}
const { message } = await engine.chat(messages, { tools, tool_choice: 'none', n_predict: 60 });
console.log(message.content);
// ANCHOR_END: tools
await engine.close();
