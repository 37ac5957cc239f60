'use strict';
const { devices, version } = require('./library.cjs');
const { ForedraftError } = require('./errors.cjs');
const { Engine } = require('./engine.cjs');
const { Stream } = require('./stream.cjs');

module.exports = { Engine, ForedraftError, Stream, devices, version };
