// Memory after many short requests: resident megabytes after every tenth part of them.
//   node --expose-gc scripts/memory/memory.mjs [requests]      koffi must be installed in node/
import { fileURLToPath } from 'node:url';
import { Engine } from '../../node/lib/index.mjs';

const count = Number(process.argv[2] ?? 10_000);
const model = fileURLToPath(new URL('../../models/stories-draft.gguf', import.meta.url));
const engine = await Engine.load({ model, n_ctx: 256, warmup: false });
for (let i = 0; i <= count; i++) {
  if (i % (count / 10) === 0) {
    globalThis.gc?.();
    console.log(`${String(i).padStart(6)} requests ${(process.memoryUsage().rss / 1e6).toFixed(1).padStart(7)} MB`);
  }
  await engine.complete({ prompt: `Number ${i}`, n_predict: 1 });
}
await engine.close();
