// `await using`, compiled by tsc for this Node.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Engine, type Stream } from 'foredraft';
import { config, endless, idle } from './common.mjs';

test('await using closes engines and cancels streams', async () => {
  let left: Engine;
  let abandoned: Stream;
  {
    await using engine = await Engine.load(config);
    {
      await using stream = engine.stream(endless);
      await stream.next();
      abandoned = stream;
      assert.equal(stream.finished, false);
    }
    assert.equal(abandoned.finished, true);
    await idle(engine);
    assert.equal(engine.closed, false);
    left = engine;
  }
  assert.equal(left.closed, true);
});

test('await using closes the engine when its block throws', async () => {
  let left: Engine | undefined;
  await assert.rejects(async () => {
    await using engine = await Engine.load(config);
    left = engine;
    throw new RangeError('mine');
  }, RangeError);
  assert.equal(left?.closed, true);
});
