'use strict';
const { version } = require('./library.cjs');
const { ForedraftError } = require('./errors.cjs');
const { Engine } = require('./engine.cjs');
const { Stream } = require('./stream.cjs');

module.exports = { Engine, ForedraftError, Stream, version };
