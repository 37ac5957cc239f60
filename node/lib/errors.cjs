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

/** The error for an error object, or for a status whose load failed. */
const errorFrom = answer => new ForedraftError(answer.error ?? 'the library gave no reason', answer);

module.exports = { ForedraftError, errorFrom };
