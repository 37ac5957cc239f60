// Asks a model about a picture: node picture.mjs MODEL.gguf MMPROJ.gguf
import { Engine, picture } from 'foredraft';

const [width, height] = [64, 48];

/** A red square on white. */
function draw() {
  const pixels = Buffer.alloc(width * height * 3, 255);
  for (let y = 16; y < 32; y++) {
    for (let x = 24; x < 40; x++) pixels.fill(0, 3 * (y * width + x) + 1, 3 * (y * width + x) + 3);
  }
  return pixels;
}

const [model, mmproj] = process.argv.slice(2);
// ANCHOR: picture
const engine = await Engine.load({ model, mmproj });
/** @type {import('foredraft').ContentPart[]} */
const content = [picture(draw(), width, height), { type: 'text', text: 'What is in the picture?' }];
const answer = await engine.complete({ messages: [{ role: 'user', content }], n_predict: 30, temperature: 0 });
console.log(answer.content);
await engine.close();
// ANCHOR_END: picture
