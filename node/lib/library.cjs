'use strict';
// The shared library by koffi. No thread of the library ever calls into the program's JavaScript: such a call waits for the event
// loop, and there is none any more when the process or a worker ends. The library writes to a pipe instead (notifier.cjs), or calls a
// worker that the program's end wakes (logits.cjs).
const fs = require('node:fs');
const { createRequire } = require('node:module');
const path = require('node:path');
const { promisify } = require('node:util');
const koffi = require('koffi');
const { errorFrom } = require('./errors.cjs');
const { fileName, packageName } = require('./platform.cjs');

/** A file as the system can load it: Electron unpacks what `asarUnpack` names beside its archive. */
function unpacked(file) {
  const outside = file.replace(/\.asar(?=[\\/])/, '.asar.unpacked');
  return fs.existsSync(outside) ? outside : file;
}

/** FOREDRAFT_LIB, else the library of the platform's package, else that of the repository around this one. */
function libraryPath() {
  if (process.env.FOREDRAFT_LIB) return process.env.FOREDRAFT_LIB;
  const carrier = packageName();
  try {
    return unpacked(path.join(path.dirname(require.resolve(`${carrier}/package.json`)), fileName));
  } catch (error) {
    const built = path.join(__dirname, '../../target/release', fileName);
    if (fs.existsSync(built)) return built;
    const known = Object.keys(require('../package.json').optionalDependencies);
    throw new Error(known.includes(carrier)
      ? `foredraft: the package ${carrier}, which carries the library for this platform, is not installed. npm leaves it out with `
        + '--omit=optional, and when node_modules comes from another platform. FOREDRAFT_LIB can name a library instead.'
      : `foredraft: there is no package ${carrier}, only ${known.join(', ')}: build the library for this platform, and name it by FOREDRAFT_LIB.`,
    { cause: error });
  }
}

/** Names the modules of `@foredraft/vulkan`, where that package is installed, for the library and for the processes that it starts. */
function nameModules() {
  if (process.env.FOREDRAFT_BACKENDS !== undefined) return;
  try {
    const from = createRequire(require.resolve('@foredraft/vulkan/package.json'));
    const carrier = from.resolve(`${packageName().replace('/', '/vulkan-')}/package.json`);
    process.env.FOREDRAFT_BACKENDS = unpacked(path.join(path.dirname(carrier), fileName.replace('foredraft', 'foredraft-vulkan')));
  } catch (error) {
    if (error.code !== 'MODULE_NOT_FOUND') throw error;
  }
}

nameModules();
const lib = koffi.load(libraryPath());
// Strings that koffi copies and then releases.
const Owned = koffi.disposable('str', lib.func('void foredraft_string_free(void *text)'));

// Handles are numbers below 2^53.
const engineNew = lib.func('uintptr_t foredraft_engine_new(void)');
const engineFree = lib.func('void foredraft_engine_free(uintptr_t engine)');
const loadAsync = lib.func('void foredraft_load_async(uintptr_t engine, str config)');
const unload = lib.func('void foredraft_unload(uintptr_t engine)');
const pause = lib.func('int32_t foredraft_pause(uintptr_t engine)');
const resume = lib.func('int32_t foredraft_resume(uintptr_t engine)');
const setLogitsCallback = lib.func('void foredraft_set_logits_callback(uintptr_t engine, void *callback, uintptr_t user)');
const rawStatus = lib.func('foredraft_status', Owned, ['uintptr_t']);
const version = lib.func('str foredraft_version(void)');
const rawDevices = lib.func('foredraft_devices', Owned, []);

const functions = {};
for (const name of ['decide', 'prepare', 'submit', 'poll', 'cancel', 'tokenize', 'detokenize', 'model_info', 'apply_template', 'embed', 'rerank', 'session_save',
  'session_load', 'session_erase', 'conversation', 'lookup_cache', 'lookup_create', 'lookup_merge', 'lookup_stats']) {
  const call = lib.func(`foredraft_${name}`, Owned, ['uintptr_t', 'str']);
  functions[name] = { call, aside: promisify(call.async) };
}

/** The object in an answer; throws the error that it is. */
function checked(text) {
  const answer = JSON.parse(text);
  if (!answer.success) throw errorFrom(answer);
  return answer;
}

/** What a load can use. The first call starts the backends. */
const devices = () => checked(rawDevices());

/** Calls what returns at once: `poll` without a timeout, `cancel`. */
const callNow = (name, engine, request) => checked(functions[name].call(engine, JSON.stringify(request)));

/** Calls on a thread of libuv's pool what computes or waits. */
const callAside = async (name, engine, request) => checked(await functions[name].aside(engine, JSON.stringify(request)));

const status = engine => JSON.parse(rawStatus(engine));

module.exports = {
  koffi, engineNew, engineFree, engineFreeAside: promisify(engineFree.async), loadAsync, unloadAside: promisify(unload.async),
  setLogitsCallbackAside: promisify(setLogitsCallback.async), pause, resume, setLogitsCallback, status, version, devices, callNow, callAside,
};
