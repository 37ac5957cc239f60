'use strict';
// Wakes what waits for news of an engine's requests: the library writes to a pipe, which libuv watches together with all
// else. No thread of its pool is needed for that.
const fs = require('node:fs');
const net = require('node:net');
const { koffi } = require('./library.cjs');

/** Where there are no pipes, waiters look again after so many milliseconds. */
const INTERVAL = 10;

const O_CLOEXEC = 0o2000000;
let makeEnds, closeEnd;

/** Both ends of a pipe, which children do not inherit; undefined where there is none. */
function makePipe() {
  if (process.platform === 'win32') return undefined;
  makeEnds ??= process.platform === 'linux'
    ? koffi.load(null).func('int pipe2(int *ends, int flags)')
    : koffi.load(null).func('int pipe(int *ends)');
  // Not fs.closeSync: in a worker Node warns of descriptors that it did not open.
  closeEnd ??= koffi.load(null).func('int close(int fd)');
  const ends = new Int32Array(2);
  const failed = process.platform === 'linux' ? makeEnds(ends, fs.constants.O_NONBLOCK | O_CLOEXEC) : makeEnds(ends);
  return failed ? undefined : { read: ends[0], write: ends[1] };
}

class Notifier {
  #waiters = new Set();
  #socket;
  #write;
  #timer;

  constructor() {
    const pipe = makePipe();
    if (!pipe) return;
    this.#write = pipe.write;
    this.#socket = new net.Socket({ fd: pipe.read, readable: true, writable: false });
    // The bytes mean nothing but that there is news.
    this.#socket.on('data', () => this.wake());
    this.#socket.on('error', () => {});
    this.#socket.unref();
  }

  /** The option that tells the library to write to the pipe. */
  get config() {
    return this.#write === undefined ? {} : { notify_fd: this.#write };
  }

  /** A wait for the next news of any request, to be made before the request is polled. Until it ends or is discarded, the
   *  process does not end by itself. */
  next() {
    let resolve;
    const promise = new Promise(end => { resolve = end; });
    if (this.#waiters.size === 0) this.#hold();
    this.#waiters.add(resolve);
    const discard = () => {
      if (this.#waiters.delete(resolve) && this.#waiters.size === 0) this.#release();
    };
    return { promise, discard };
  }

  #hold() {
    if (this.#socket) this.#socket.ref();
    else this.#timer = setTimeout(() => this.wake(), INTERVAL);
  }

  #release() {
    clearTimeout(this.#timer);
    this.#socket?.unref();
  }

  /** Ends all waits. */
  wake() {
    this.#release();
    const waiters = this.#waiters;
    this.#waiters = new Set();
    for (const resolve of waiters) resolve();
  }

  /** Closes the pipe, after the engine's end. */
  close() {
    if (this.#write !== undefined) closeEnd(this.#write);
    this.#write = undefined;
    this.#socket?.destroy();
    this.#socket = undefined;
    this.wake();
  }
}

module.exports = { Notifier };
