'use strict';

const { constants } = require('node:os');

/** A failure that the library reports: `code` is a word of its closed list, `status` an HTTP-style number, `answer` the whole
 *  error object. Where a file does not exist, `code`, `errno` and `path` are those of Node's own errors. */
class ForedraftError extends Error {
  constructor(message, answer = {}) {
    super(message);
    this.name = 'ForedraftError';
    this.code = answer.code ?? 'internal';
    this.status = answer.status ?? 500;
    this.answer = answer;
    if (answer.missing_file != null) {
      this.code = 'ENOENT';
      this.errno = -constants.errno.ENOENT;
      this.path = answer.missing_file;
    }
  }
}

/** The error for an argument. */
const invalid = message => new ForedraftError(message, { code: 'invalid_request', status: 400 });

/** A value, for a message. */
const shown = value => (JSON.stringify(value) ?? String(value)).slice(0, 100);

/** The options of a call, after a check that it knows them. */
function optionsOf(options = {}, known) {
  if (options === null || typeof options !== 'object') throw invalid(`options: expected an object, got ${shown(options)}`);
  for (const key of Object.keys(options)) {
    if (!known.includes(key)) {
      throw invalid(`options: expected ${known.join(' or ')}, got ${key}; the keys of a request or of a load belong in the first argument`);
    }
  }
  return options;
}

/** The error for an error object, or for a status whose load failed. */
const errorFrom = answer => new ForedraftError(answer.error ?? 'the library gave no reason', answer);

module.exports = { ForedraftError, errorFrom, invalid, optionsOf, shown };
