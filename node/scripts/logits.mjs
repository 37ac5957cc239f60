// How much processor time a logits processor costs for each token: the difference of the least times of completions with and without it, which take turns.
//   node node/scripts/logits.mjs MODEL TOKENS ROUNDS
import { Engine } from '../lib/index.mjs';

const [model, tokens, rounds] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const engine = await Engine.load({ model, n_ctx: 1024, n_threads: 1, speculative: false, log_level: 'error' });
const request = { prompt: 'Once upon a time', n_predict: tokens, ignore_eos: true, temperature: 0 };

/** Microseconds of processor time for each token. */
async function perToken(more) {
  const before = process.cpuUsage();
  await engine.complete({ ...request, ...more });
  const { user, system } = process.cpuUsage(before);
  return (user + system) / tokens;
}

const processors = {
  Node: () => {},
  'Node, adds to each': (_, logits) => { for (let i = 0; i < logits.length; i++) logits[i] += 0.5; },
};
const costs = {};
for (const [name, logitsProcessor] of Object.entries(processors)) {
  await perToken({ logitsProcessor });
  let changed = Infinity, plain = Infinity;
  for (let i = 0; i < rounds; i++) {
    changed = Math.min(changed, await perToken({ logitsProcessor }));
    plain = Math.min(plain, await perToken());
  }
  costs[name] = Math.round(10 * (changed - plain)) / 10;
}
console.log(JSON.stringify(costs));
await engine.close();
