#!/usr/bin/env node
'use strict';
// The program foredraft-get.
const { ForedraftError } = require('./errors.cjs');
const { download } = require('./hub.cjs');

async function main() {
  const references = process.argv.slice(2).filter(argument => !argument.startsWith('--'));
  const options = process.argv.slice(2).filter(argument => argument.startsWith('--'));
  if (references.length !== 1 || options.some(option => option !== '--only-model')) {
    throw new ForedraftError('[--only-model] owner/name[:quant] | owner/name/file.gguf | address');
  }
  let shown = -1;
  const onProgress = (done, file, size) => {
    const percent = Math.floor(100 * done);
    if (percent === shown) return;
    shown = percent;
    process.stderr.write(`\r${file} ${percent} % of ${Math.round(size / 1e6)} MB${done === 1 ? '\n' : ''}`);
  };
  const found = await download(references[0], { onProgress, ...(options.length && { beside: [] }) });
  console.log(JSON.stringify(found, undefined, 2));
}

main().catch(error => {
  console.error(error instanceof ForedraftError ? `foredraft-get: ${error.message}` : error);
  process.exitCode = 1;
});
