'use strict';

/** The base64 of bytes: a Buffer, another view of memory, or an ArrayBuffer. */
function encoded(bytes) {
  const buffer = ArrayBuffer.isView(bytes) ? Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength) : Buffer.from(bytes);
  return buffer.toString('base64');
}

function picture(bytes, width, height) {
  if (width === undefined) return { type: 'image_url', image_url: { url: `data:;base64,${encoded(bytes)}` } };
  const format = bytes.byteLength === 4 * width * height ? 'rgba8' : 'rgb8';
  return { type: 'image', width, height, format, base64: encoded(bytes) };
}

function sound(source, rate, channels = 1) {
  if (rate === undefined) return { type: 'input_audio', input_audio: { data: encoded(source) } };
  const head = Buffer.alloc(44), block = 4 * channels;
  head.write('RIFF', 0, 'latin1');
  head.writeUInt32LE(36 + source.byteLength, 4);
  head.write('WAVEfmt ', 8, 'latin1');
  head.writeUInt32LE(16, 16);
  head.writeUInt16LE(3, 20); // floating-point numbers
  head.writeUInt16LE(channels, 22);
  head.writeUInt32LE(rate, 24);
  head.writeUInt32LE(rate * block, 28);
  head.writeUInt16LE(block, 32);
  head.writeUInt16LE(32, 34);
  head.write('data', 36, 'latin1');
  head.writeUInt32LE(source.byteLength, 40);
  const samples = Buffer.from(source.buffer, source.byteOffset, source.byteLength);
  return { type: 'input_audio', input_audio: { data: Buffer.concat([head, samples]).toString('base64') } };
}

module.exports = { picture, sound };
