'use strict';
// Downloads models from Hugging Face's hub, or from an address, into the hub's own cache: see docs/models.md.
const crypto = require('node:crypto');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const { ForedraftError, invalid, optionsOf, shown } = require('./errors.cjs');

/** Attempts in a row that bring nothing before a download fails. */
const ATTEMPTS = 4;
/** The beginnings of drafters' names, as llama.cpp's converter writes them. */
const DRAFTER = /^(mtp|eagle3|dflash|dspark)-/;
const BESIDE = ['model_draft', 'mmproj'];
const NAME = '[A-Za-z0-9_][A-Za-z0-9_.-]*';
const REFERENCE = new RegExp(`^(?:hf:)?(${NAME}/${NAME})(?:@([\\w.-]+))?(?:/(.+\\.gguf)|:([\\w.-]+))?$`);
const ADDRESS = new RegExp(`^(https?://[^/]+)/(${NAME}/${NAME})/(?:resolve|blob)/([^/]+)/(.+)$`);
const SPLIT = /^(.+)-(\d{5})-of-(\d{5})\.gguf$/i;

const sha256 = text => crypto.createHash('sha256').update(text).digest('hex');
const modelError = (message, cause) => Object.assign(new ForedraftError(message, { code: 'model_error', status: 500 }), { cause });
const notFound = message => new ForedraftError(message, { code: 'not_found', status: 404 });
const directory = file => file.slice(0, file.lastIndexOf('/') + 1);
const quoted = text => text.split('/').map(encodeURIComponent).join('/');
const pause = failures => 100 * 4 ** failures;

/** Whether a model is one to download: `hf:owner/name[:quant]`, or an address. */
const isRemote = model => typeof model === 'string' && /^(hf:|https?:\/\/)/.test(model);

function home() {
  const { HF_HOME, XDG_CACHE_HOME } = process.env;
  return HF_HOME || path.join(XDG_CACHE_HOME || path.join(os.homedir(), '.cache'), 'huggingface');
}

const cache = () => process.env.HF_HUB_CACHE || process.env.HUGGINGFACE_HUB_CACHE || path.join(home(), 'hub');
const endpointOf = () => (process.env.HF_ENDPOINT || 'https://huggingface.co').replace(/\/+$/, '');

function token() {
  const { HF_TOKEN, HUGGING_FACE_HUB_TOKEN, HF_TOKEN_PATH } = process.env;
  const given = HF_TOKEN || HUGGING_FACE_HUB_TOKEN;
  const saved = HF_TOKEN_PATH || path.join(home(), 'token');
  return (given || (fs.existsSync(saved) ? fs.readFileSync(saved, 'utf8') : '')).trim();
}

/** What a reference names: a repository and what is meant of it, or an address. */
function placeOf(reference) {
  let found = ADDRESS.exec(reference.split('?')[0]);
  if (found) {
    const [, endpoint, name, revision, file] = found;
    return { name, revision, file: decodeURIComponent(file), endpoint };
  }
  found = REFERENCE.exec(reference);
  if (found && !found[1].includes('..')) {
    const [, name, revision = 'main', file, quant] = found;
    return { name, revision, file, quant, endpoint: endpointOf() };
  }
  if (/^https?:\/\/[^/]+\/./.test(reference)) {
    // A "commit" of its own for each address.
    const { host, pathname } = new URL(reference);
    return { name: host.replace(/[^A-Za-z0-9.]/g, '-'), revision: sha256(reference).slice(0, 40), file: path.posix.basename(pathname), endpoint: reference };
  }
  throw invalid(`model: expected "owner/name", "owner/name:Q4_K_M", "owner/name/file.gguf" or an address, got ${shown(reference)}`);
}

/** A model's download: requests, and the files of one place. */
class Download {
  constructor(place, { signal, onProgress }) {
    Object.assign(this, { place, signal, onProgress });
    this.folder = path.join(cache(), `models--${place.name.replace('/', '--')}`);
  }

  /** Requests an address. `busy` in an error: the server may answer later, or cannot be reached. */
  async ask(url, options = {}) {
    const { place, signal } = this;
    const headers = { 'User-Agent': 'foredraft', 'Accept-Encoding': 'identity', ...options.headers };
    const secret = token();
    if (secret && new URL(url).origin === new URL(endpointOf()).origin) headers.Authorization = `Bearer ${secret}`;
    let answer;
    try {
      answer = await fetch(url, { ...options, headers, signal });
    } catch (error) {
      signal?.throwIfAborted();
      throw Object.assign(modelError(String(error.cause?.message ?? error.message), error), { busy: true, unreachable: true });
    }
    const { status } = answer;
    if (answer.ok) return answer;
    await answer.body?.cancel();
    const what = `${place.name}: ${new URL(place.endpoint).host} answered ${status}`;
    if (status === 408 || status === 429 || status >= 500) throw Object.assign(modelError(what), { busy: true });
    if (status === 401 || status === 403) {
      throw modelError(`${what}. It is private, gated or not there: HF_TOKEN gives a token of an account that has access.`);
    }
    throw notFound(`${what}: there is no such repository, revision or file`);
  }

  /** The same; a busy server is asked again. */
  async askPatiently(url, options) {
    for (let attempt = 1; ; ++attempt) {
      try {
        return await this.ask(url, options);
      } catch (error) {
        if (!error.busy || error.unreachable || attempt === ATTEMPTS) throw error;
        await sleep(pause(attempt), undefined, { signal: this.signal });
      }
    }
  }

  /** Finds a commit and its files: those of the hub, or without a connection those of the cache. */
  async list() {
    const { place, folder } = this;
    let why = 'HF_HUB_OFFLINE is set';
    if (!['1', 'ON', 'YES', 'TRUE'].includes((process.env.HF_HUB_OFFLINE ?? '').toUpperCase())) {
      try {
        await this.listRemote();
        return;
      } catch (error) {
        if (!error.busy) throw error;
        why = `${place.endpoint} cannot be reached: ${error.message}`;
      }
    }
    const ref = path.join(folder, 'refs', place.revision);
    this.commit = fs.existsSync(ref) ? fs.readFileSync(ref, 'utf8').trim() : place.revision;
    const collect = prefix => fs.readdirSync(path.join(this.snapshot, prefix), { withFileTypes: true }).flatMap(entry => (
      entry.isDirectory() ? collect(`${prefix}${entry.name}/`) : [`${prefix}${entry.name}`]));
    const isThere = /^[0-9a-f]{40}$/.test(this.commit) && fs.existsSync(this.snapshot);
    const found = isThere ? collect('').filter(file => file.endsWith('.gguf') && fs.existsSync(path.join(this.snapshot, file))) : [];
    if (!found.length) throw notFound(`${place.name} is not in ${cache()}, and ${why}`);
    this.files = found.sort().map(file => ({ path: file }));
  }

  get snapshot() {
    return path.join(this.folder, 'snapshots', this.commit);
  }

  async listRemote() {
    const { endpoint, name, revision, file } = this.place;
    if (!name.includes('/')) {
      const { headers } = await this.askPatiently(endpoint, { method: 'HEAD' });
      const size = headers.get('content-length');
      if (size === null || !isSafe(file)) throw modelError(`${endpoint}: the server tells no size of a file`);
      this.commit = revision;
      this.files = [{ path: file, size: Number(size), blob: sha256(`${endpoint} ${headers.get('etag')} ${size}`).slice(0, 40), url: endpoint }];
      return;
    }
    const text = await (await this.askPatiently(`${endpoint}/api/models/${name}/revision/${encodeURIComponent(revision)}?blobs=true`)).text();
    try {
      const { sha, siblings } = JSON.parse(text);
      const files = siblings.map(({ rfilename, size, blobId, lfs }) => (
        { path: rfilename, size, blob: lfs?.sha256 ?? blobId, url: `${endpoint}/${name}/resolve/${sha}/${quoted(rfilename)}` }));
      const isWrong = ({ size, blob }) => !Number.isSafeInteger(size) || !/^([0-9a-f]{40}|[0-9a-f]{64})$/.test(blob);
      if (!/^[0-9a-f]{40}$/.test(sha) || files.some(isWrong)) throw new TypeError('a sum');
      this.commit = sha;
      this.files = files.filter(entry => entry.path.endsWith('.gguf') && isSafe(entry.path));
    } catch (error) {
      throw modelError(`${endpoint} gave no list of the files of ${name}`, error);
    }
  }

  /** Downloads a file, checks its sum and links it into the snapshot. */
  async fetch(file) {
    const target = path.join(this.snapshot, file.path);
    if (file.blob === undefined || fs.existsSync(target)) return;
    const blob = path.join(this.folder, 'blobs', file.blob);
    const partial = `${blob}.foredraft.incomplete`;
    this.write(() => [blob, target].forEach(each => fs.mkdirSync(path.dirname(each), { recursive: true })));
    if (!fs.existsSync(blob)) {
      if (await this.receive(file, partial) !== file.blob && file.blob.length === 64) {
        fs.rmSync(partial, { force: true });
        throw modelError(`${file.path}: what ${file.url} sent has not the SHA-256 ${file.blob}, and was deleted`);
      }
      // It is not there where another process was first.
      this.write(() => fs.existsSync(partial) && fs.renameSync(partial, blob), 'ENOENT');
    }
    this.write(() => {
      try {
        fs.symlinkSync(path.relative(path.dirname(target), blob), target);
      } catch (error) {
        if (error.code === 'EEXIST') return;
        fs.renameSync(blob, target); // Windows without the right to make links, as Hugging Face's own program does
      }
    });
  }

  /** Completes a partial file, and returns its SHA-256. Processes that do so at once write the same bytes at the same places, each from an
   *  end of the file on. So they need no lock, and a file never has a gap. */
  async receive(file, partial) {
    const out = this.write(() => fs.openSync(partial, fs.constants.O_RDWR | fs.constants.O_CREAT, 0o666));
    try {
      let at = fs.fstatSync(out).size;
      if (at > file.size) {
        fs.ftruncateSync(out);
        at = 0;
      }
      for (let failures = 0; at < file.size;) {
        const before = at;
        let why = 'the connection was cut';
        try {
          const answer = await this.ask(file.url, { headers: at ? { Range: `bytes=${at}-` } : {} });
          if (answer.status !== 206) at = 0;
          for await (const block of answer.body) {
            const taken = block.subarray(0, file.size - at);
            for (let done = 0; done < taken.length;) done += this.write(() => fs.writeSync(out, taken, done, taken.length - done, at + done));
            at += taken.length;
            await this.onProgress?.(at / file.size, file.path, file.size);
            if (at === file.size) break;
          }
        } catch (error) {
          if (!error.busy && error.message !== 'terminated') throw error;
          this.signal?.throwIfAborted();
          why = error.message;
        }
        failures = at > before ? 0 : failures + 1;
        if (failures === ATTEMPTS) {
          throw modelError(`${file.path}: ${at} of ${file.size} bytes are there, then ${file.url} sent no more: ${why}. The next attempt goes on from there.`);
        }
        if (failures) await sleep(pause(failures), undefined, { signal: this.signal });
      }
      const digest = crypto.createHash('sha256');
      for await (const block of fs.createReadStream(partial, { fd: out, start: 0, autoClose: false, highWaterMark: 1 << 20 })) digest.update(block);
      return digest.digest('hex');
    } finally {
      fs.closeSync(out);
    }
  }

  /** Does what writes into the cache: its failures name the folder. */
  write(action, allowed) {
    try {
      return action();
    } catch (error) {
      if (error.code === allowed) return undefined;
      throw modelError(`${this.folder} cannot be written: ${error.message}. HF_HUB_CACHE names another folder for downloads.`, error);
    }
  }
}

/** Whether a path stays inside its folder, on every system. */
const isSafe = file => !/[\\:\0-\x1f]/.test(file) && file.split('/').every(part => !['', '.', '..'].includes(part));

/** The files that a reference means, by the key of a load: llama.cpp's choice. */
function chosen({ name, file, quant }, files, keys) {
  const kinds = {
    model_draft: files.filter(entry => DRAFTER.test(path.posix.basename(entry.path))),
    mmproj: files.filter(entry => entry.path.includes('mmproj')),
  };
  const aside = Object.values(kinds).flat();
  const models = files.filter(entry => !aside.includes(entry) && !entry.path.includes('imatrix') && Number(SPLIT.exec(entry.path)?.[2] ?? 1) === 1);
  const withQuant = wanted => {
    const pattern = new RegExp(`${wanted.replaceAll('.', '\\.')}[.-]`, 'i');
    return models.find(entry => pattern.test(entry.path));
  };
  let found;
  if (file !== undefined) found = files.find(entry => entry.path === file);
  else if (quant !== undefined) found = withQuant(quant);
  else found = withQuant('Q4_K_M') ?? withQuant('Q8_0') ?? models[0];
  if (!found) {
    throw notFound(`${name}: no ${file ?? quant ?? 'GGUF file'}; there is ${models.map(entry => entry.path).join(', ') || 'no GGUF file'}`);
  }
  const all = { model: partsOf(found, files) };
  for (const key of aside.includes(found) ? [] : keys) {
    // In the nearest folder, with the most similar quantization.
    const distance = entry => [-entry.path.split('/').length, Math.abs(bits(entry.path) - bits(found.path))];
    const near = kinds[key].filter(entry => found.path.startsWith(directory(entry.path))).map(entry => [...distance(entry), entry]);
    near.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
    if (near.length) all[key] = partsOf(near[0][2], files);
  }
  return all;
}

/** 4 of `name-Q4_K_M.gguf`. */
const bits = file => Number(/[-.][A-Za-z_]*(\d+)\w*$/.exec(SPLIT.exec(file)?.[1] ?? file.slice(0, -'.gguf'.length))?.[1] ?? 0);

/** All files of a model, the first one first. */
function partsOf(file, files) {
  const [, prefix, , count] = SPLIT.exec(file.path) ?? [];
  if (prefix === undefined) return [file];
  return Array.from({ length: Number(count) }, (_, i) => {
    const wanted = `${prefix}-${String(i + 1).padStart(5, '0')}-of-${count}.gguf`;
    const found = files.find(entry => entry.path === wanted);
    if (!found) throw notFound(`${file.path}: ${wanted} is missing`);
    return found;
  });
}

/** Downloads `owner/name[@revision][:quant]`, `owner/name/file.gguf` or an address into Hugging Face's cache, or finds it there. */
async function download(reference, options) {
  const { beside = BESIDE, signal, onProgress } = optionsOf(options, ['beside', 'signal', 'onProgress']);
  const place = placeOf(reference);
  const run = new Download(place, { signal, onProgress });
  await run.list();
  const all = chosen(place, run.files, beside);
  for (const file of Object.values(all).flat()) await run.fetch(file);
  if (run.files.some(file => file.blob !== undefined)) {
    run.write(() => {
      fs.mkdirSync(path.join(run.folder, 'refs'), { recursive: true });
      fs.writeFileSync(path.join(run.folder, 'refs', place.revision), run.commit);
    });
  }
  return Object.fromEntries(Object.entries(all).map(([key, parts]) => [key, path.join(run.snapshot, parts[0].path)]));
}

module.exports = { download, isRemote };
